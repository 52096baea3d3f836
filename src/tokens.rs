//! Sentences as token ids.

use std::path::Path;

use anyhow::{bail, Context, Error, Result};
use candle::{Device, Tensor};
use opara_models::tokenizer;
use opara_weights::Checkpoint;
use tokenizers::{PaddingParams, PaddingStrategy, TruncationParams};

use crate::hash::fnv1a;

/// Converts sentences to rows of token ids of equal length.
pub struct Tokenizer {
    seq_len: usize,
    kind: Kind,
}

enum Kind {
    Trained(Box<tokenizers::Tokenizer>),
    Hash { vocab_size: usize },
}

/// Token ids and the padding mask, both `(batch, seq)` in u32.
pub struct Tokens {
    /// Token ids.
    pub ids: Tensor,
    /// One for tokens, zero for padding.
    pub mask: Tensor,
}

impl Tokenizer {
    /// Loads a checkpoint's tokenizer, which pads or truncates to `seq_len`. Without a checkpoint, or for a weights
    /// file with neither configuration nor tokenizer in its folder, it is the [hashing](Self::hashing) tokenizer.
    ///
    /// # Errors
    /// A checkpoint without a valid `tokenizer.json`.
    pub fn of(checkpoint: Option<&Checkpoint>, vocab_size: usize, seq_len: usize) -> Result<Self> {
        let Some(checkpoint) = checkpoint else { return Ok(Self::hashing(vocab_size, seq_len)) };
        match (checkpoint.tokenizer_path(), checkpoint.config_path()) {
            (Some(tokenizer), _) => Self::trained(tokenizer, seq_len),
            (None, None) => Ok(Self::hashing(vocab_size, seq_len)),
            (None, Some(config)) => bail!("the checkpoint has no tokenizer.json beside {}", config.display()),
        }
    }

    fn trained(path: &Path, seq_len: usize) -> Result<Self> {
        let mut tokenizer = tokenizer::load(path)
            .map_err(Error::from_boxed)
            .with_context(|| format!("cannot parse {}", path.display()))?;
        let padding =
            ["[PAD]", "<pad>", "<|pad|>"].into_iter().find_map(|token| Some((token, tokenizer.token_to_id(token)?)));
        let (pad_token, pad_id) = padding.unwrap_or(("[PAD]", 0));
        let strategy = PaddingStrategy::Fixed(seq_len);
        let padding = PaddingParams { strategy, pad_id, pad_token: pad_token.to_owned(), ..Default::default() };
        let truncation = TruncationParams { max_length: seq_len, ..Default::default() };
        tokenizer.with_padding(Some(padding)).with_truncation(Some(truncation)).map_err(Error::from_boxed)?;
        Ok(Self { seq_len, kind: Kind::Trained(Box::new(tokenizer)) })
    }

    /// A replacement for use without a checkpoint. A sentence starts with token 1, each word in lower case is hashed to
    /// one of the higher ids, and 0 is padding. Prints a note on stderr.
    pub fn hashing(vocab_size: usize, seq_len: usize) -> Self {
        eprintln!("no trained tokenizer: words are hashed into the vocabulary");
        Self { seq_len, kind: Kind::Hash { vocab_size } }
    }

    /// Computes token ids and masks of all sentences in batches of `size`. The last batch is filled up with the first
    /// sentences, so that one schedule fits all batches.
    ///
    /// # Errors
    /// An error of the checkpoint's tokenizer or of the device.
    pub fn batches(&self, sentences: &[&str], size: usize, device: &Device) -> Result<Vec<Tokens>> {
        let count = sentences.len().div_ceil(size) * size;
        let filled: Vec<&str> = sentences.iter().copied().cycle().take(count).collect();
        filled.chunks(size).map(|batch| self.encode(batch, device)).collect()
    }

    /// Computes token ids and mask of a batch.
    ///
    /// # Errors
    /// An error of the checkpoint's tokenizer or of the device.
    pub fn encode(&self, sentences: &[&str], device: &Device) -> Result<Tokens> {
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for sentence in sentences {
            match &self.kind {
                Kind::Trained(tokenizer) => {
                    let encoding = tokenizer.encode(*sentence, true).map_err(Error::from_boxed)?;
                    ids.extend_from_slice(encoding.get_ids());
                    mask.extend_from_slice(encoding.get_attention_mask());
                }
                Kind::Hash { vocab_size } => {
                    let words = std::iter::once(1).chain(hashed_words(sentence, *vocab_size));
                    let row = words.chain(std::iter::repeat(0)).take(self.seq_len);
                    ids.extend(row.clone());
                    mask.extend(row.map(|id| u32::from(id != 0)));
                }
            }
        }
        let shape = (sentences.len(), self.seq_len);
        Ok(Tokens { ids: Tensor::from_vec(ids, shape, device)?, mask: Tensor::from_vec(mask, shape, device)? })
    }

    /// Decodes token ids to text, without special tokens. The hashing tokenizer cannot decode and returns the ids as
    /// text.
    ///
    /// # Errors
    /// An error of the checkpoint's tokenizer.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        match &self.kind {
            Kind::Trained(tokenizer) => tokenizer.decode(ids, true).map_err(Error::from_boxed),
            Kind::Hash { .. } => Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
        }
    }
}

fn hashed_words(sentence: &str, vocab_size: usize) -> impl Iterator<Item = u32> + Clone + '_ {
    let words = sentence.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(move |word| 2 + (fnv1a(&word.to_lowercase()) % (vocab_size.max(3) as u64 - 2)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_sentences_are_padded_or_truncated() -> Result<()> {
        let tokens = Tokenizer::hashing(10, 4).encode(&["The cat", "the cat sat down", ""], &Device::Cpu)?;
        let ids = tokens.ids.to_vec2::<u32>()?;
        assert_eq!(ids[0][..3], ids[1][..3], "case does not matter");
        assert_eq!((ids[0][0], ids[0][3]), (1, 0));
        assert!(ids.iter().flatten().all(|&id| id < 10));
        assert_eq!(tokens.mask.to_vec2::<u32>()?, [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]);
        Ok(())
    }

    #[test]
    fn padding_and_truncation_are_those_asked_for_whatever_the_file_keeps() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tokenizer.json");
        let plain = r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "<pad>": 3}, "unk_token": "a"}"#;
        let truncation = r#"{"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 1}"#;
        let padding = r#"{"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 1,
            "pad_type_id": 1, "pad_token": "b"}"#;
        for saved in [String::new(), format!(r#", "truncation": {truncation}, "padding": {padding}"#)] {
            std::fs::write(&path, format!("{plain}{saved}}}"))?;
            let tokens = Tokenizer::trained(&path, 3)?.encode(&["a b c a", "c"], &Device::Cpu)?;
            assert_eq!(tokens.ids.to_vec2::<u32>()?, [[0, 1, 2], [2, 3, 3]]);
            assert_eq!(tokens.mask.to_vec2::<u32>()?, [[1, 1, 1], [1, 0, 0]]);
        }
        Ok(())
    }

    #[test]
    fn a_damaged_tokenizer_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, "{")?;
        let error = format!("{:#}", Tokenizer::trained(&path, 4).err().context("it is damaged")?);
        assert!(error.starts_with(&format!("cannot parse {}: ", path.display())), "{error}");
        Ok(())
    }

    #[test]
    fn hashed_tokens_decode_to_their_ids() -> Result<()> {
        assert_eq!(Tokenizer::hashing(10, 4).decode(&[1, 7, 0])?, "1 7 0");
        Ok(())
    }
}
