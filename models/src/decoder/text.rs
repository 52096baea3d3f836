//! Between text and tokens.

use std::path::{Path, PathBuf};

use opara_weights::Checkpoint;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::error::{DecoderError, Result};
use super::gguf::Gguf;
use super::template::{beside, Message, Template};

/// A model's tokenizer, and its chat template, if it has one.
pub struct Text {
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<Template>,
    /// Where they are from.
    pub(super) path: PathBuf,
    /// The token that every text begins with, where the tokenizer does not add it by itself.
    pub(super) bos: Option<u32>,
}

impl Text {
    /// Of `tokenizer.json` and of `tokenizer_config.json` and `chat_template.jinja` beside it.
    ///
    /// # Errors
    /// [`DecoderError::NoTokenizer`], [`DecoderError::Tokenizer`], [`DecoderError::Template`], files that cannot be read.
    pub fn beside(tokenizer: &Path) -> Result<Self> {
        if !tokenizer.is_file() {
            let reason = "tokenizer.json is missing".into();
            return Err(DecoderError::NoTokenizer { path: tokenizer.into(), reason });
        }
        let loaded = Tokenizer::from_file(tokenizer).map_err(DecoderError::Tokenizer)?;
        Ok(Self { tokenizer: loaded, template: beside(tokenizer)?, path: tokenizer.into(), bos: None })
    }

    /// Of a checkpoint's `tokenizer.json` and what lies beside it.
    ///
    /// # Errors
    /// Those of [`beside`](Self::beside).
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.tokenizer_path() {
            Some(path) => Self::beside(path),
            None => {
                let (path, reason) = (checkpoint.config_path().unwrap_or(Path::new("")), "tokenizer.json is missing");
                Err(DecoderError::NoTokenizer { path: path.into(), reason: reason.into() })
            }
        }
    }

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
        let tokens = gguf.texts("tokenizer.ggml.tokens").unwrap_or_default();
        let token = |name: &str| gguf.count(name).and_then(|id| tokens.get(id)).map(|token| token.to_string());
        let (bos, eos) = (token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id"));
        let source = gguf.text("tokenizer.chat_template").map(str::to_owned);
        let template = source.map(|source| Template::new(source, bos, eos)).transpose()?;
        let adds_bos = gguf.flag("tokenizer.ggml.add_bos_token") == Some(true);
        let bos = gguf.count("tokenizer.ggml.bos_token_id").filter(|_| adds_bos).map(|id| id as u32);
        Ok(Self { tokenizer: of_bytes(&gguf)?, template, path: path.into(), bos })
    }

    /// The tokens of a prompt, with the one that begins a text, if the model has one.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self.tokenizer.encode(text, true).map_err(DecoderError::Tokenizer)?;
        Ok(self.bos.into_iter().chain(tokens.get_ids().iter().copied()).collect())
    }

    /// The tokens of a conversation up to where the assistant answers.
    ///
    /// # Errors
    /// [`DecoderError::NoTemplate`], [`DecoderError::Template`], [`DecoderError::Tokenizer`].
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or_else(|| DecoderError::NoTemplate { path: self.path.clone() })?;
        // Templates have the special tokens in them.
        let tokens = self.tokenizer.encode(template.render(messages)?, false).map_err(DecoderError::Tokenizer)?;
        Ok(tokens.get_ids().to_vec())
    }

    /// Whether conversations have a template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(DecoderError::Tokenizer)
    }
}

/// How texts are split before bytes are merged, by the names of GGUF files.
fn split(name: &str) -> Option<&'static str> {
    Some(match name {
        "llama-bpe" | "llama3" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "qwen2" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "smollm" => r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "gpt-2" | "default" => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _ => return None,
    })
}

/// Byte pairs, as `tokenizer.ggml.*` describe them.
fn of_bytes(gguf: &Gguf) -> Result<Tokenizer> {
    let lacks = |reason: String| DecoderError::NoTokenizer { path: gguf.path().into(), reason };
    let kind = gguf.text("tokenizer.ggml.model").unwrap_or("none");
    let (tokens, merges) = (gguf.texts("tokenizer.ggml.tokens"), gguf.texts("tokenizer.ggml.merges"));
    let (Some(tokens), Some(merges), "gpt2") = (tokens, merges, kind) else {
        return Err(lacks(format!(
            "the file's own is of kind `{kind}`, and only `gpt2` is known: put tokenizer.json beside it"
        )));
    };
    let pre = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
    let pattern =
        split(pre).ok_or_else(|| lacks(format!("texts are split by `{pre}`: put tokenizer.json beside the file")))?;
    let merges = merges.iter().map(|merge| {
        let pair = merge.split_once(' ').map(|(first, second)| (first.to_owned(), second.to_owned()));
        pair.ok_or_else(|| lacks(format!("`{merge}` is not a pair to merge")))
    });
    let merges = merges.collect::<Result<Vec<_>>>()?;
    let vocab: tokenizers::models::bpe::Vocab = tokens.iter().map(|token| token.to_string()).zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(pre == "llama-bpe").build();
    let mut tokenizer = Tokenizer::new(model.map_err(DecoderError::Tokenizer)?);
    let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
    let steps: [PreTokenizerWrapper; 2] =
        [split.map_err(DecoderError::Tokenizer)?.into(), ByteLevel::new(false, true, false).into()];
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps.to_vec())));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    // Kinds of tokens: 3 controls, 4 was added by hand.
    let kinds = gguf.numbers("tokenizer.ggml.token_type").unwrap_or_default();
    let of_kind = |kind: u64| {
        let tokens = tokens.iter().zip(&kinds).filter(move |(_, of)| **of == kind);
        tokens.map(move |(token, _)| AddedToken::from(token.to_string(), kind == 3)).collect::<Vec<_>>()
    };
    tokenizer.add_special_tokens(of_kind(3)).map_err(DecoderError::Tokenizer)?;
    tokenizer.add_tokens(of_kind(4)).map_err(DecoderError::Tokenizer)?;
    Ok(tokenizer)
}
