//! Sentences as token ids.

use std::path::Path;

use anyhow::{bail, Context, Error, Result};
use candle::{Device, Tensor};
use opara_weights::Checkpoint;
use tokenizers::{PaddingStrategy, TruncationParams};

use crate::hash::fnv1a;

/// Turns sentences into rows of token ids, all of one length.
pub struct Tokenizer {
    seq_len: usize,
    kind: Kind,
}

enum Kind {
    Trained(Box<tokenizers::Tokenizer>),
    Hash { vocab_size: usize },
}

/// Token ids and the mask that tells them from padding, both `(batch, seq)` of u32.
pub struct Tokens {
    /// Token ids.
    pub ids: Tensor,
    /// One for a token, zero for padding.
    pub mask: Tensor,
}

impl Tokenizer {
    /// The tokenizer of a checkpoint, padding or cutting to `seq_len`; the stand-in ([`hashing`](Self::hashing)) without a
    /// checkpoint, and for a weights file that has neither configuration nor tokenizer beside it.
    ///
    /// # Errors
    /// A checkpoint without a sound `tokenizer.json`.
    pub fn of(checkpoint: Option<&Checkpoint>, vocab_size: usize, seq_len: usize) -> Result<Self> {
        let Some(checkpoint) = checkpoint else { return Ok(Self::hashing(vocab_size, seq_len)) };
        match checkpoint.tokenizer_path() {
            Some(path) => Self::trained(path, seq_len),
            None if checkpoint.config_path().is_none() => Ok(Self::hashing(vocab_size, seq_len)),
            None => bail!("the checkpoint has no tokenizer.json"),
        }
    }

    fn trained(path: &Path, seq_len: usize) -> Result<Self> {
        let mut tokenizer = tokenizers::Tokenizer::from_file(path)
            .map_err(Error::from_boxed)
            .with_context(|| format!("cannot parse {}", path.display()))?;
        let mut padding = tokenizer.get_padding().cloned().unwrap_or_default();
        padding.strategy = PaddingStrategy::Fixed(seq_len);
        let truncation = TruncationParams { max_length: seq_len, ..Default::default() };
        tokenizer.with_padding(Some(padding)).with_truncation(Some(truncation)).map_err(Error::from_boxed)?;
        Ok(Self { seq_len, kind: Kind::Trained(Box::new(tokenizer)) })
    }

    /// A stand-in where there is no checkpoint: a start token, 1, then each word in lower case hashed to one of the ids
    /// above; 0 is padding. Says so on stderr.
    pub fn hashing(vocab_size: usize, seq_len: usize) -> Self {
        eprintln!("the tokenizer is a stand-in: it hashes words into the vocabulary");
        Self { seq_len, kind: Kind::Hash { vocab_size } }
    }

    /// Token ids and mask of a batch.
    ///
    /// # Errors
    /// Those of the checkpoint's tokenizer and of the device.
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

    /// The text of token ids, without special ones. The stand-in cannot know it and gives the ids themselves.
    ///
    /// # Errors
    /// Those of the checkpoint's tokenizer.
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
    fn a_hashed_sentence_is_padded_or_cut() -> Result<()> {
        let tokens = Tokenizer::hashing(10, 4).encode(&["The cat", "the cat sat down", ""], &Device::Cpu)?;
        let ids = tokens.ids.to_vec2::<u32>()?;
        assert_eq!(ids[0][..3], ids[1][..3], "case does not matter");
        assert_eq!((ids[0][0], ids[0][3]), (1, 0));
        assert!(ids.iter().flatten().all(|&id| id < 10));
        assert_eq!(tokens.mask.to_vec2::<u32>()?, [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]);
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
    fn what_was_hashed_comes_back_as_numbers() -> Result<()> {
        assert_eq!(Tokenizer::hashing(10, 4).decode(&[1, 7, 0])?, "1 7 0");
        Ok(())
    }
}
