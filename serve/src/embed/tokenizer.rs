//! Texts as token ids.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use opara_models::tokenizer;
use tokenizers::normalizers::{BertNormalizer, Lowercase, Sequence};
use tokenizers::{NormalizerWrapper, PostProcessor, Tokenizer, TruncationDirection};

use super::transformer::TokenizerSettings;
use super::words::Words;
use super::{EmbedError, PromptChoice, Prompts, Result, TextRow};

/// Turns texts into token ids, without padding. Clones share it.
#[derive(Clone)]
pub struct TextTokenizer {
    kind: Kind,
    limit: usize,
    cuts: bool,
    side: TruncationDirection,
    prompts: Arc<Prompts>,
    /// Whether the tokens of a prompt are pooled with those of the text.
    pools_prompt: bool,
}

#[derive(Clone)]
enum Kind {
    Words(Arc<Words>),
    Trained(Arc<Tokenizer>),
    Hash { vocab_size: usize },
}

/// How the texts of one request are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// The prompt before each text.
    pub prompt: PromptChoice,
    /// Whether texts that are too long are cut; `None` leaves it to [`TextTokenizer::cut`].
    pub cut: Option<bool>,
}

impl TextOptions {
    /// What a request says in its fields `prompt`, `prompt_name` and `truncate`.
    ///
    /// # Errors
    /// [`EmbedError::TwoPrompts`].
    pub fn of(prompt: Option<String>, name: Option<String>, truncate: Option<bool>) -> Result<Self> {
        let prompt = match (prompt, name) {
            (None, None) => PromptChoice::Default,
            (None, Some(name)) => PromptChoice::Named(name),
            (Some(text), None) => PromptChoice::Text(text),
            (Some(_), Some(_)) => return Err(EmbedError::TwoPrompts),
        };
        Ok(Self { prompt, cut: truncate })
    }
}

impl TextTokenizer {
    /// The tokenizer of this file.
    pub(super) fn trained(path: &Path, settings: TokenizerSettings, vocabulary: usize) -> Result<Self> {
        let failed =
            |error: tokenizers::Error| EmbedError::File { path: path.to_path_buf(), reason: error.to_string() };
        let mut tokenizer = tokenizer::open(path).map_err(failed)?;
        // Tokens that were added by hand are refused with the text that has them.
        let added = tokenizer.get_added_vocabulary().get_vocab();
        let words = tokenizer.get_vocab(false).into_iter().filter(|(token, _)| !added.contains_key(token));
        if let Some((token, id)) = words.max_by_key(|(_, id)| *id).filter(|(_, id)| *id as usize >= vocabulary) {
            return Err(failed(format!("`{token}` is token {id}, and the model has {vocabulary}").into()));
        }
        // Of a truncation that was saved, transformers keeps the side and asks for a length of its own.
        let saved = tokenizer.get_truncation().map(|truncation| truncation.direction);
        tokenizer.with_padding(None).with_truncation(None).map_err(failed)?;
        let normalizer = match (tokenizer.get_normalizer(), settings.normalizer) {
            (Some(NormalizerWrapper::BertNormalizer(_)), Some(other)) => Some(other.into()),
            (own, _) => own.cloned(),
        };
        let normalizer = if settings.lower_case { Some(lower_case(normalizer)) } else { normalizer };
        tokenizer.with_normalizer(normalizer).map_err(failed)?;
        let tokenizer = Arc::new(tokenizer);
        let kind = match Words::of(&tokenizer) {
            Some(words) => Kind::Words(words.into()),
            None => Kind::Trained(tokenizer),
        };
        Ok(Self { side: settings.side.or(saved).unwrap_or_default(), ..Self::of(kind, settings.limit) })
    }

    /// A stand-in for models without a checkpoint: a start token, 1, then each word in lower case hashed to one of the ids
    /// above; 0 is padding.
    pub(super) fn hashing(vocab_size: usize, limit: usize) -> Self {
        Self::of(Kind::Hash { vocab_size }, limit)
    }

    fn of(kind: Kind, limit: usize) -> Self {
        let (cuts, side, prompts) = (false, TruncationDirection::Right, Arc::default());
        Self { kind, limit, cuts, side, prompts, pools_prompt: true }
    }

    /// Puts these prompts before texts, and says whether their tokens are pooled.
    pub(super) fn with_prompts(mut self, prompts: Prompts, pools_prompt: bool) -> Self {
        (self.prompts, self.pools_prompt) = (Arc::new(prompts), pools_prompt);
        self
    }

    /// Whether texts that are too long are cut, as sentence-transformers does. Otherwise they are an error, which is the
    /// default.
    pub fn cut(mut self, cut: bool) -> Self {
        self.cuts = cut;
        self
    }

    /// Tokens that a text may have, those of its prompt included.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The token ids of each text behind the model's default prompt.
    ///
    /// # Errors
    /// As for [`rows`](Self::rows).
    pub fn encode(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<u32>>> {
        Ok(self.rows(texts, &TextOptions::default())?.into_iter().map(|row| row.ids).collect())
    }

    /// The texts as rows of a model.
    ///
    /// # Errors
    /// [`EmbedError::TooLong`], [`EmbedError::Empty`], [`EmbedError::UnknownPrompt`] and [`EmbedError::Tokenizer`].
    pub fn rows(&self, texts: &[impl AsRef<str>], options: &TextOptions) -> Result<Vec<TextRow>> {
        let prompt = self.prompts.text(&options.prompt)?;
        let cuts = options.cut.unwrap_or(self.cuts);
        let unpooled = if prompt.is_empty() || self.pools_prompt { 0 } else { self.prompt_tokens(prompt)? };
        let row = |(index, text): (usize, &_)| {
            let text = AsRef::<str>::as_ref(text);
            let row = match prompt {
                "" => self.encode_one(index, text, cuts)?,
                prompt => self.encode_one(index, &format!("{prompt}{text}"), cuts)?,
            };
            match row.ids.len() > unpooled {
                true => Ok(TextRow { unpooled, ..row }),
                false => Err(EmbedError::Empty { text: index }),
            }
        };
        texts.iter().enumerate().map(row).collect()
    }

    /// Tokens of a prompt alone, without the special one that ends it.
    fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let ids = self.encode_one(0, prompt, true)?.ids;
        let ends = ids.last().is_some_and(|last| match &self.kind {
            Kind::Words(words) => special_ids(words.tokenizer()).contains(last),
            Kind::Trained(tokenizer) => special_ids(tokenizer).contains(last),
            Kind::Hash { .. } => false,
        });
        Ok(ids.len() - usize::from(ends))
    }

    fn encode_one(&self, index: usize, text: &str, cuts: bool) -> Result<TextRow> {
        let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
        let all = || -> tokenizers::Result<TextRow> {
            Ok(match &self.kind {
                Kind::Words(words) => words.encode(text)?.into(),
                Kind::Trained(tokenizer) => row(&tokenizer.encode_fast(text, true)?),
                Kind::Hash { vocab_size } => {
                    std::iter::once(1).chain(hashed_words(text, *vocab_size)).collect::<Vec<_>>().into()
                }
            })
        };
        let row = tokenizer::guarded(all).map_err(failed)?;
        if row.ids.len() <= self.limit {
            return Ok(row);
        }
        let tokens = row.ids.len();
        let cut = if cuts { tokenizer::guarded(|| self.cut_row(row, text)).map_err(failed)? } else { None };
        cut.ok_or(EmbedError::TooLong { text: index, tokens, limit: self.limit })
    }

    /// The row with fewer tokens of the text between its special ones; `None` if these alone are too many.
    fn cut_row(&self, mut row: TextRow, text: &str) -> tokenizers::Result<Option<TextRow>> {
        match &self.kind {
            Kind::Words(words) => {
                let [before, after] = words.around();
                let excess = row.ids.len() - self.limit;
                let range = match self.side {
                    TruncationDirection::Left => before.len()..before.len() + excess,
                    TruncationDirection::Right => {
                        let end = row.ids.len() - after.len();
                        end.saturating_sub(excess)..end
                    }
                };
                if before.len() + after.len() > self.limit {
                    return Ok(None);
                }
                row.ids.drain(range);
            }
            Kind::Trained(tokenizer) => {
                let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
                let Some(rest) = self.limit.checked_sub(special) else { return Ok(None) };
                let mut encoding = tokenizer.encode_fast(text, false)?;
                encoding.truncate(rest, 0, self.side);
                row = self::row(&tokenizer.post_process(encoding, None, true)?);
            }
            Kind::Hash { .. } => row.ids.truncate(self.limit),
        }
        Ok(Some(row))
    }
}

fn row(encoding: &tokenizers::Encoding) -> TextRow {
    let types = encoding.get_type_ids();
    let types = if types.iter().all(|&kind| kind == 0) { Vec::new() } else { types.to_vec() };
    TextRow { ids: encoding.get_ids().to_vec(), types, unpooled: 0 }
}

/// The ids of a tokenizer's special tokens.
fn special_ids(tokenizer: &Tokenizer) -> HashSet<u32> {
    let tokens = tokenizer.get_added_tokens_decoder();
    tokens.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect()
}

/// The normalizer behind one that puts texts into lower case, as sentence-transformers adds it.
fn lower_case(normalizer: Option<NormalizerWrapper>) -> NormalizerWrapper {
    match normalizer {
        // Accents stay as they are, and words are still split at white space.
        Some(NormalizerWrapper::BertNormalizer(bert)) => {
            let strip_accents = bert.strip_accents.unwrap_or(bert.lowercase);
            BertNormalizer::new(bert.clean_text, bert.handle_chinese_chars, Some(strip_accents), true).into()
        }
        other => Sequence::new(std::iter::once(Lowercase.into()).chain(other).collect()).into(),
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
