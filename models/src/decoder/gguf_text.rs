//! The tokenizer in a GGUF file, as llama.cpp reads it.

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Splitter, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::error::{DecoderError, Result};
use super::gguf::Gguf;
use super::splits::Split;
use super::template::Templates;
use super::text::Text;

/// The keys of a tokenizer.
const KEYS: &str = "tokenizer.ggml.";

/// Kinds of tokens that texts are searched for before they are split: controls, and those that were added by hand.
const CONTROL: u64 = 3;
const ADDED: u64 = 4;

impl Text {
    /// Of a GGUF file: `tokenizer.json` beside it, else the file's own, if that is of bytes (`gpt2`).
    ///
    /// # Errors
    /// [`DecoderError::NoTokenizer`], [`DecoderError::Gguf`], and those of [`beside`](Self::beside).
    pub fn of_gguf(path: &Path) -> Result<Self> {
        let beside = path.with_file_name("tokenizer.json");
        if beside.is_file() {
            return Self::beside(&beside);
        }
        let gguf = Gguf::open(path, candle::DType::F32, &candle::Device::Cpu)?;
        let source = Source { gguf: &gguf };
        let (tokenizer, split) = source.tokenizer()?;
        let bos = match gguf.flag("tokenizer.ggml.add_bos_token").unwrap_or(split.adds_bos) {
            true => Some(source.needed("bos_token_id")?),
            false => None,
        };
        let eos = match gguf.flag("tokenizer.ggml.add_eos_token").unwrap_or(false) {
            true => Some(source.needed("eos_token_id")?),
            false => None,
        };
        Ok(Self { bos, eos, begins_chats: true, ..Self::new(tokenizer, source.templates(), path.into())? })
    }
}

struct Source<'a> {
    gguf: &'a Gguf,
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

    /// A token's id, if the file has it.
    fn id(&self, name: &str) -> Option<u32> {
        let id = self.gguf.count(&format!("{KEYS}{name}"))?;
        u32::try_from(id).ok().filter(|_| id < self.tokens().len())
    }

    fn needed(&self, name: &str) -> Result<u32> {
        let lacks = || self.lacks(format!("texts begin or end with a token that `{KEYS}{name}` does not name"));
        self.id(name).ok_or_else(lacks)
    }

    /// Byte pairs.
    fn tokenizer(&self) -> Result<(Tokenizer, Split)> {
        let kind = self.gguf.text("tokenizer.ggml.model").unwrap_or("none");
        let (tokens, merges) = (self.tokens(), self.gguf.texts("tokenizer.ggml.merges"));
        let (false, Some(merges), "gpt2") = (tokens.is_empty(), merges, kind) else {
            return Err(self.lacks(format!("the file's own is of kind `{kind}`, and only `gpt2` is known")));
        };
        self.check_unread()?;
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
        let vocab: Vocab = tokens.iter().map(|token| token.to_string()).zip(0..).collect();
        if vocab.len() != tokens.len() {
            return Err(self.lacks("a token is in the vocabulary twice".into()));
        }
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
        let kinds = self.gguf.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        let of_kind = |kind: u64| {
            let tokens = tokens.iter().zip(&kinds).filter(move |(_, of)| **of == kind);
            let added =
                tokens.map(move |(token, _)| AddedToken::from(token.to_string(), kind == CONTROL).normalized(false));
            added.collect::<Vec<_>>()
        };
        tokenizer.add_special_tokens(of_kind(CONTROL)).map_err(DecoderError::Tokenizer)?;
        tokenizer.add_tokens(of_kind(ADDED)).map_err(DecoderError::Tokenizer)?;
        Ok((tokenizer, split))
    }

    /// Refuses what would change tokens and is not read.
    fn check_unread(&self) -> Result<()> {
        const READ: [&str; 9] = [
            "model",
            "pre",
            "tokens",
            "token_type",
            "token_type_count",
            "scores",
            "merges",
            "add_bos_token",
            "add_eos_token",
        ];
        for key in self.gguf.keys().filter_map(|key| key.strip_prefix(KEYS)) {
            // Tokens by name change no text. A flag that is not set asks for nothing.
            let is_off = self.gguf.flag(&format!("{KEYS}{key}")) == Some(false);
            if !(READ.contains(&key) || key.ends_with("_token_id") || is_off) {
                return Err(self.lacks(format!("`{KEYS}{key}` changes tokens, and is not read for byte pairs")));
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
