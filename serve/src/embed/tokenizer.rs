//! Texts as token ids.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use opara_models::tokenizer;
use tokenizers::normalizers::{BertNormalizer, Lowercase, Sequence};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    NormalizerWrapper, PostProcessor, Tokenizer, TruncationDirection, TruncationParams, TruncationStrategy,
};

use super::transformer::TokenizerSettings;
use super::words::Words;
use super::{text_end, EmbedError, PromptChoice, Prompts, Result, TextRow, VectorOptions};

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
    /// A token that no text may have.
    barred: Option<u32>,
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
    /// On which side they are cut; `None` leaves it to the tokenizer.
    pub side: Option<Side>,
    /// Whether the answers are the hidden states of all tokens.
    pub has_tokens: bool,
    /// What vectors are like.
    pub vector: VectorOptions,
}

/// A side of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Side {
    /// Its beginning.
    #[serde(alias = "left")]
    Left,
    /// Its end.
    #[serde(alias = "right")]
    Right,
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// Its part of the text, or its name where it is special.
    pub text: String,
    /// Whether it stands for no part of the text.
    pub is_special: bool,
    /// Where its part begins and ends, in characters; `None` for special ones.
    pub place: Option<(usize, usize)>,
}

/// Whether texts are cut, and on which side.
#[derive(Clone, Copy)]
struct Cut {
    cuts: bool,
    side: TruncationDirection,
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
        Ok(Self { prompt, cut: truncate, ..Self::default() })
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
        if let Some(end) = &settings.end {
            text_end::put(&mut tokenizer, end).map_err(failed)?;
        }
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
        Self { kind, limit, cuts, side, prompts, pools_prompt: true, barred: None }
    }

    /// Puts these prompts before texts, and says whether their tokens are pooled.
    pub(super) fn with_prompts(mut self, prompts: Prompts, pools_prompt: bool) -> Self {
        (self.prompts, self.pools_prompt) = (Arc::new(prompts), pools_prompt);
        self
    }

    /// Refuses texts that have this token.
    pub(super) fn barring(mut self, token: Option<u32>) -> Self {
        self.barred = token;
        self
    }

    /// Refuses rows that have a token which no text may have.
    ///
    /// # Errors
    /// [`EmbedError::Padding`].
    pub fn check(&self, rows: &[TextRow]) -> Result<()> {
        let Some(id) = self.barred else { return Ok(()) };
        match rows.iter().position(|row| row.ids.contains(&id)) {
            Some(text) => Err(EmbedError::Padding { text, id }),
            None => Ok(()),
        }
    }

    /// Whether texts that are too long are cut, as sentence-transformers does. Otherwise they are an error, which is the
    /// default.
    pub fn cut(mut self, cut: bool) -> Self {
        self.cuts = cut;
        self
    }

    /// Whether texts that are too long are cut where a request does not say.
    pub fn cuts(&self) -> bool {
        self.cuts
    }

    /// Takes at most `tokens` tokens of a text.
    pub fn limited(mut self, tokens: usize) -> Self {
        self.limit = self.limit.min(tokens);
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
        let cut = self.cut_of(options);
        let unpooled = if prompt.is_empty() || self.pools_prompt { 0 } else { self.prompt_tokens(prompt)? };
        let row = |(index, text): (usize, &_)| {
            let text = AsRef::<str>::as_ref(text);
            let row = match prompt {
                "" => self.encode_one(index, text, cut)?,
                prompt => self.encode_one(index, &format!("{prompt}{text}"), cut)?,
            };
            match row.ids.len() > unpooled {
                true => Ok(TextRow { unpooled, has_tokens: options.has_tokens, vector: options.vector, ..row }),
                false => Err(EmbedError::Empty { text: index }),
            }
        };
        let rows: Vec<TextRow> = texts.iter().enumerate().map(row).collect::<Result<_>>()?;
        self.check(&rows).map(|()| rows)
    }

    /// Pairs of texts as rows of a model. Where a pair is too long and may be cut, the longer of the two loses tokens first.
    ///
    /// # Errors
    /// As for [`rows`](Self::rows); a prompt is for single texts.
    pub fn pairs(&self, pairs: &[(String, String)], options: &TextOptions) -> Result<Vec<TextRow>> {
        if options.prompt != PromptChoice::Default {
            return Err(EmbedError::PairPrompt);
        }
        let cut = self.cut_of(options);
        let row = |(index, pair): (usize, &(String, String))| {
            let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
            let row = tokenizer::guarded(|| self.encode_pair(pair, cut)).map_err(failed)?;
            match row.ids.len() {
                0 => Err(EmbedError::Empty { text: index }),
                tokens if tokens > self.limit => Err(EmbedError::TooLong { text: index, tokens, limit: self.limit }),
                _ => Ok(row),
            }
        };
        let rows: Vec<TextRow> = pairs.iter().enumerate().map(row).collect::<Result<_>>()?;
        self.check(&rows).map(|()| rows)
    }

    fn cut_of(&self, options: &TextOptions) -> Cut {
        let side = options.side.map(|side| match side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        });
        Cut { cuts: options.cut.unwrap_or(self.cuts), side: side.unwrap_or(self.side) }
    }

    /// The tokenizer of a checkpoint.
    fn trained_one(&self) -> Option<&Tokenizer> {
        match &self.kind {
            Kind::Words(words) => Some(words.tokenizer()),
            Kind::Trained(tokenizer) => Some(tokenizer),
            Kind::Hash { .. } => None,
        }
    }

    fn encode_pair(&self, (first, second): &(String, String), cut: Cut) -> tokenizers::Result<TextRow> {
        let Some(tokenizer) = self.trained_one() else {
            let Kind::Hash { vocab_size } = self.kind else { return Ok(TextRow::default()) };
            let words = [first, second].into_iter().flat_map(|text| hashed_words(text, vocab_size));
            let mut ids: Vec<u32> = std::iter::once(1).chain(words).collect();
            ids.truncate(if cut.cuts { self.limit } else { usize::MAX });
            return Ok(ids.into());
        };
        let mut parts = (tokenizer.encode_fast(first.as_str(), false)?, tokenizer.encode_fast(second.as_str(), false)?);
        let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let tokens = parts.0.len() + parts.1.len() + special;
        if cut.cuts && tokens > self.limit && special < self.limit {
            let (max_length, direction) = (self.limit - special, cut.side);
            let how = TruncationParams { max_length, direction, stride: 0, strategy: TruncationStrategy::LongestFirst };
            let (first, second) = truncate_encodings(parts.0, Some(parts.1), &how)?;
            parts = (first, second.unwrap_or_default());
        }
        Ok(row(&tokenizer.post_process(parts.0, Some(parts.1), true)?))
    }

    /// The tokens of a text behind a prompt.
    ///
    /// # Errors
    /// [`EmbedError::UnknownPrompt`] and [`EmbedError::Tokenizer`]; a model with random weights has no tokenizer.
    pub fn tokens(&self, text: &str, adds_special: bool, prompt: &PromptChoice) -> Result<Vec<Token>> {
        let tokenizer = self.trained_one().ok_or(EmbedError::Untrained)?;
        let text = format!("{}{text}", self.prompts.text(prompt)?);
        let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
        let encoding =
            tokenizer::guarded(|| tokenizer.encode_char_offsets(text.as_str(), adds_special)).map_err(failed)?;
        let token = |index: usize| {
            let (id, (start, stop)) = (encoding.get_ids()[index], encoding.get_offsets()[index]);
            let is_special = encoding.get_special_tokens_mask()[index] == 1;
            let text = match is_special {
                true => tokenizer.id_to_token(id).unwrap_or_default(),
                false => text.chars().skip(start).take(stop.saturating_sub(start)).collect(),
            };
            Token { id, text, is_special, place: (!is_special).then_some((start, stop)) }
        };
        Ok((0..encoding.len()).map(token).collect())
    }

    /// The text of token ids.
    ///
    /// # Errors
    /// [`EmbedError::Tokenizer`]; a model with random weights has no tokenizer.
    pub fn decode(&self, ids: &[u32], skips_special: bool) -> Result<String> {
        let tokenizer = self.trained_one().ok_or(EmbedError::Untrained)?;
        let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
        tokenizer::guarded(|| tokenizer.decode(ids, skips_special)).map_err(failed)
    }

    /// Tokens of a prompt alone, without the special one that ends it.
    fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let ids = self.encode_one(0, prompt, Cut { cuts: true, side: self.side })?.ids;
        let special = self.trained_one().map(special_ids).unwrap_or_default();
        let ends = ids.last().is_some_and(|last| special.contains(last));
        Ok(ids.len() - usize::from(ends))
    }

    fn encode_one(&self, index: usize, text: &str, cut: Cut) -> Result<TextRow> {
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
        let cut =
            if cut.cuts { tokenizer::guarded(|| self.cut_row(row, text, cut.side)).map_err(failed)? } else { None };
        cut.ok_or(EmbedError::TooLong { text: index, tokens, limit: self.limit })
    }

    /// The row with fewer tokens of the text between its special ones; `None` if these alone are too many.
    fn cut_row(&self, mut row: TextRow, text: &str, side: TruncationDirection) -> tokenizers::Result<Option<TextRow>> {
        match &self.kind {
            Kind::Words(words) => {
                let [before, after] = words.around();
                let excess = row.ids.len() - self.limit;
                let range = match side {
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
                encoding.truncate(rest, 0, side);
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
    TextRow { ids: encoding.get_ids().to_vec(), types, ..TextRow::default() }
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
