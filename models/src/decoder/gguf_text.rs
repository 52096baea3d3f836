//! The tokenizer in a GGUF file, as llama.cpp reads it.

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Splitter, SplitPattern};
use tokenizers::{AddedToken, DecoderWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::error::{DecoderError, Result};
use super::gguf::Gguf;
use super::kinds::{Kind, Kinds};
use super::sentencepiece::Sentencepiece;
use super::splits::Split;
use super::template::Templates;
use super::text::Text;

/// The keys of a tokenizer.
const KEYS: &str = "tokenizer.ggml.";

impl Text {
    /// Of a GGUF file: `tokenizer.json` beside it, else the file's own, if that is of bytes (`gpt2`) or of sentencepiece (`llama`).
    ///
    /// # Errors
    /// [`DecoderError::NoTokenizer`], [`DecoderError::Gguf`], and those of [`beside`](Self::beside).
    pub fn of_gguf(path: &Path) -> Result<Self> {
        let beside = path.with_file_name("tokenizer.json");
        if beside.is_file() {
            return Self::beside(&beside);
        }
        let gguf = Gguf::open(path, candle::DType::F32, &candle::Device::Cpu)?;
        let source = Source { gguf: &gguf, kind: gguf.text("tokenizer.ggml.model").unwrap_or("none") };
        let Pairs { tokenizer, sentencepiece, adds_bos } = source.pairs()?;
        let bos = match gguf.flag("tokenizer.ggml.add_bos_token").unwrap_or(adds_bos) {
            true => Some(source.needed("bos_token_id")?),
            false => None,
        };
        let eos = match gguf.flag("tokenizer.ggml.add_eos_token").unwrap_or(false) {
            true => Some(source.needed("eos_token_id")?),
            false => None,
        };
        let text = Self::new(tokenizer, source.templates(), path.into())?;
        Ok(Self { bos, eos, begins_chats: true, sentencepiece, ..text })
    }
}

struct Source<'a> {
    gguf: &'a Gguf,
    /// Of which kind the tokenizer is.
    kind: &'a str,
}

/// What makes tokens of texts.
struct Pairs {
    tokenizer: Tokenizer,
    /// If texts are split by it, and the tokenizer finds controls alone.
    sentencepiece: Option<Sentencepiece>,
    /// Whether a text begins with a token of its own, unless the file says otherwise.
    adds_bos: bool,
}

impl Source<'_> {
    fn lacks(&self, reason: String) -> DecoderError {
        DecoderError::NoTokenizer {
            path: self.gguf.path().into(),
            reason: format!("{reason}: put tokenizer.json beside the file"),
        }
    }

    fn tokens(&self) -> Vec<&str> {
        self.gguf.texts("tokenizer.ggml.tokens").unwrap_or_default()
    }

    /// A token's id, if the file has it. Sentencepiece has numbers of its own where no key says them.
    fn id(&self, name: &str) -> Option<u32> {
        let key = format!("{KEYS}{name}");
        let id = match (self.kind, name) {
            ("llama", "bos_token_id") if !self.gguf.has_key(&key) => 1,
            ("llama", "eos_token_id") if !self.gguf.has_key(&key) => 2,
            _ => self.gguf.count(&key)?,
        };
        u32::try_from(id).ok().filter(|_| id < self.tokens().len())
    }

    fn needed(&self, name: &str) -> Result<u32> {
        let lacks = || self.lacks(format!("texts begin or end with a token that `{KEYS}{name}` does not name"));
        self.id(name).ok_or_else(lacks)
    }

    fn pairs(&self) -> Result<Pairs> {
        // As llama.cpp calls them.
        let name = |(at, token): (usize, &&str)| match token.is_empty() {
            true => format!("[EMPTY_{at}]"),
            false => token.to_string(),
        };
        let tokens: Vec<String> = self.tokens().iter().enumerate().map(name).collect();
        let known = match self.kind {
            "gpt2" => self.byte_pairs(&tokens)?,
            "llama" => self.sentencepiece(&tokens)?,
            kind => {
                return Err(self.lacks(format!("the file's own is of kind `{kind}`, and known are `gpt2` and `llama`")));
            }
        };
        let Pairs { mut tokenizer, sentencepiece, adds_bos } = known;
        let kinds = Kinds::of(self.gguf, &self.tokens())?;
        let strips = self.strips();
        let of_kind = |kind: Kind| {
            let tokens = tokens.iter().zip(kinds.all()).filter(move |(_, of)| **of == kind);
            tokens.map(move |(token, _)| {
                let strips = strips && !matches!(token.as_str(), "<unk>" | "<s>" | "<|endoftext|>");
                AddedToken::from(token.clone(), kind == Kind::Control).normalized(false).rstrip(strips)
            })
        };
        tokenizer.add_special_tokens(of_kind(Kind::Control)).map_err(DecoderError::Tokenizer)?;
        tokenizer.add_tokens(of_kind(Kind::Added)).map_err(DecoderError::Tokenizer)?;
        Ok(Pairs { tokenizer, sentencepiece, adds_bos })
    }

    /// Whether spaces behind controls are dropped: files do not say it, and llama.cpp tells by the model's name.
    fn strips(&self) -> bool {
        let name = self.gguf.text("general.name").unwrap_or_default().to_ascii_lowercase();
        name.contains("phi-3") || name.contains("phi3")
    }

    /// The vocabulary; a token that is there twice is an error, and so is none.
    fn vocabulary(&self, tokens: &[String]) -> Result<Vocab> {
        let vocab: Vocab = tokens.iter().cloned().zip(0..).collect();
        match vocab.len() {
            0 => Err(self.lacks("the file has no tokens".into())),
            len if len < tokens.len() => Err(self.lacks("a token is in the vocabulary twice".into())),
            _ => Ok(vocab),
        }
    }

    /// Pairs of bytes, merged in the order of a list.
    fn byte_pairs(&self, tokens: &[String]) -> Result<Pairs> {
        self.check_unread(&["scores"])?;
        let vocab = self.vocabulary(tokens)?;
        let merges = self.gguf.texts("tokenizer.ggml.merges");
        let merges = merges.ok_or_else(|| self.lacks(format!("`{KEYS}merges` is missing")))?;
        let pre = self.gguf.text("tokenizer.ggml.pre").unwrap_or("default");
        let split =
            Split::of(pre).ok_or_else(|| self.lacks(format!("texts are split by `{pre}`, which is not known")))?;
        let pair = |merge: &&str| {
            // The first part may be a space.
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let pair = at.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()));
            pair.ok_or_else(|| self.lacks(format!("`{merge}` is not a pair to merge")))
        };
        let merges = merges.iter().map(pair).collect::<Result<Vec<_>>>()?;
        let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(split.ignores_merges).build();
        let mut tokenizer = Tokenizer::new(model.map_err(DecoderError::Tokenizer)?);
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in split.patterns {
            let pattern = SplitPattern::Regex((*pattern).into());
            let splitter = Splitter::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(splitter.map_err(DecoderError::Tokenizer)?.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        Ok(Pairs { tokenizer, sentencepiece: None, adds_bos: split.adds_bos })
    }

    /// Pairs of characters, merged in the order of the scores of their tokens.
    fn sentencepiece(&self, tokens: &[String]) -> Result<Pairs> {
        self.check_unread(&["scores", "add_space_prefix"])?;
        let scores = self.gguf.parsed("tokenizer.ggml.scores", "a list of numbers", Gguf::floats)?;
        let scores = scores.filter(|scores| scores.len() >= tokens.len() && !scores.iter().any(|score| score.is_nan()));
        let scores = scores.ok_or_else(|| self.lacks(format!("`{KEYS}scores` has no number for each token")))?;
        let adds_space = self.gguf.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let vocab = self.vocabulary(tokens)?;
        let sentencepiece = Sentencepiece::new(tokens, scores, adds_space).map_err(|byte| {
            self.lacks(format!("texts may have the byte <0x{byte:02X}>, and no token stands for it"))
        })?;
        // It decodes, and it finds controls.
        let model = BPE::builder().vocab_and_merges(vocab, Vec::new()).byte_fallback(true).build();
        let mut tokenizer = Tokenizer::new(model.map_err(DecoderError::Tokenizer)?);
        let space = Replace::new("▁", " ").map_err(DecoderError::Tokenizer)?;
        let mut steps: Vec<DecoderWrapper> = vec![space.into(), ByteFallback::new().into(), Fuse::new().into()];
        if adds_space {
            steps.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(steps)));
        Ok(Pairs { tokenizer, sentencepiece: Some(sentencepiece), adds_bos: true })
    }

    /// Refuses what would change tokens and is not read, here or as one of `others`.
    fn check_unread(&self, others: &[&str]) -> Result<()> {
        const READ: [&str; 9] = [
            "model",
            "pre",
            "tokens",
            "token_type",
            "token_type_count",
            "merges",
            "add_bos_token",
            "add_eos_token",
            // No token of a prompt is suppressed: who loads the model refuses it.
            "suppress_tokens",
        ];
        for key in self.gguf.keys().filter_map(|key| key.strip_prefix(KEYS)) {
            // Tokens by name change no text. A flag that is not set asks for nothing.
            let is_off = self.gguf.flag(&format!("{KEYS}{key}")) == Some(false);
            if !(READ.contains(&key) || others.contains(&key) || key.ends_with("_token_id") || is_off) {
                let kind = self.kind;
                return Err(self.lacks(format!("`{KEYS}{key}` changes tokens, and is not read for the kind `{kind}`")));
            }
        }
        Ok(())
    }

    /// `tokenizer.chat_template`, and the one for tools.
    fn templates(&self) -> Option<Templates> {
        let tokens = self.tokens();
        let text = |name: &str| self.id(name).and_then(|id| tokens.get(id as usize)).map(|token| token.to_string());
        // Templates add them to other texts: llama.cpp gives empty ones where there are none.
        let named = [("bos_token", "bos_token_id"), ("eos_token", "eos_token_id")];
        let named = named.map(|(name, id)| (name.to_owned(), text(id).unwrap_or_default()));
        let keys = [("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use")];
        let sources =
            keys.into_iter().filter_map(|(name, key)| Some((name.to_owned(), self.gguf.text(key)?.to_owned())));
        Templates::new(sources.collect(), BTreeMap::from(named))
    }
}
