//! Texts as token ids.

use std::path::Path;
use std::sync::Arc;

use super::words::Words;
use super::{EmbedError, Result};

/// Turns texts into token ids, without padding. Clones share it.
#[derive(Clone)]
pub struct TextTokenizer {
    kind: Kind,
    limit: usize,
    cuts: bool,
}

#[derive(Clone)]
enum Kind {
    Words(Arc<Words>),
    Trained(Arc<tokenizers::Tokenizer>),
    Hash { vocab_size: usize },
}

impl TextTokenizer {
    /// The tokenizer of this file, for texts of at most `limit` tokens.
    pub(super) fn trained(path: &Path, limit: usize) -> Result<Self> {
        let failed =
            |error: tokenizers::Error| EmbedError::File { path: path.to_path_buf(), reason: error.to_string() };
        let mut tokenizer = tokenizers::Tokenizer::from_file(path).map_err(failed)?;
        tokenizer.with_padding(None).with_truncation(None).map_err(failed)?;
        let tokenizer = Arc::new(tokenizer);
        let kind = match Words::of(&tokenizer) {
            Some(words) => Kind::Words(words.into()),
            None => Kind::Trained(tokenizer),
        };
        Ok(Self { kind, limit, cuts: false })
    }

    /// A stand-in for models without a checkpoint: a start token, 1, then each word in lower case hashed to one of the ids
    /// above; 0 is padding.
    pub(super) fn hashing(vocab_size: usize, limit: usize) -> Self {
        Self { kind: Kind::Hash { vocab_size }, limit, cuts: false }
    }

    /// Whether texts that are too long are cut, as sentence-transformers does. Otherwise they are an error, which is the
    /// default.
    pub fn cut(mut self, cut: bool) -> Self {
        self.cuts = cut;
        self
    }

    /// Tokens that a text may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The token ids of each text.
    ///
    /// # Errors
    /// [`EmbedError::TooLong`] and [`EmbedError::Tokenizer`].
    pub fn encode(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<u32>>> {
        texts.iter().enumerate().map(|(index, text)| self.encode_one(index, text.as_ref())).collect()
    }

    fn encode_one(&self, index: usize, text: &str) -> Result<Vec<u32>> {
        let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
        let mut ids = match &self.kind {
            Kind::Words(words) => words.encode(text).map_err(failed)?,
            Kind::Trained(tokenizer) => tokenizer.encode_fast(text, true).map_err(failed)?.get_ids().to_vec(),
            Kind::Hash { vocab_size } => std::iter::once(1).chain(hashed_words(text, *vocab_size)).collect(),
        };
        if ids.len() > self.limit {
            if !self.cuts {
                return Err(EmbedError::TooLong { text: index, tokens: ids.len(), limit: self.limit });
            }
            // The last token closes a text: [SEP].
            let last = ids.len() - 1;
            if let (Kind::Words(_) | Kind::Trained(_), Some(end)) = (&self.kind, self.limit.checked_sub(1)) {
                ids.swap(end, last);
            }
            ids.truncate(self.limit);
        }
        Ok(ids)
    }
}

fn hashed_words(text: &str, vocab_size: usize) -> impl Iterator<Item = u32> + '_ {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(move |word| 2 + (fnv1a(&word.to_lowercase()) % (vocab_size.max(3) as u64 - 2)) as u32)
}

/// FNV-1a, 64 bits.
fn fnv1a(word: &str) -> u64 {
    word.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_an_error_or_cut() -> Result<()> {
        let tokenizer = TextTokenizer::hashing(10, 3);
        let error = tokenizer.encode(&["a b", "a b c"]).expect_err("the second is too long");
        assert!(matches!(error, EmbedError::TooLong { text: 1, tokens: 4, limit: 3 }), "{error}");
        let cut = tokenizer.cut(true).encode(&["a b c", "A b", ""])?;
        assert_eq!(cut[0], cut[1]);
        assert_eq!(cut[2], [1]);
        Ok(())
    }
}
