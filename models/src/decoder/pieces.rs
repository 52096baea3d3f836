//! The text of tokens that come one by one.

use tokenizers::{DecoderWrapper, Tokenizer};

use super::bytes::byte;
use super::error::{DecoderError, Result};
use super::text::Text;
use crate::tokenizer::guarded;

/// What is held back of a text whose tokens come one by one: that which may depend on tokens to come.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    /// Tokens whose text is not certain.
    ids: Vec<u32>,
    /// Bytes of a character that is not complete.
    bytes: Vec<u8>,
    /// Whether there was text before them.
    has_begun: bool,
}

/// What a token's text depends on, by the tokenizer's decoder.
#[derive(Debug, Clone, Default)]
pub(super) enum Dependence {
    /// On the bytes beside it: every token is bytes, and characters are told when they are complete.
    Bytes,
    /// On its being the first of a text, and for tokens that are single bytes on those beside it.
    First {
        /// A token that stands for those before, and its text.
        anchor: (u32, String),
    },
    /// Possibly on all tokens: the text is told at its end.
    #[default]
    All,
}

impl Dependence {
    /// Of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        if matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Self::Bytes;
        }
        let is_local = match tokenizer.get_decoder() {
            None => true,
            Some(DecoderWrapper::Sequence(steps)) => {
                let fused = steps.get_decoders().iter().position(|step| matches!(step, DecoderWrapper::Fuse(_)));
                let (before, after) = steps.get_decoders().split_at(fused.unwrap_or(steps.get_decoders().len()));
                // What is cut off the beginning of one text that all are joined to, is cut off the first tokens.
                let is_start = |step: &DecoderWrapper| match step {
                    DecoderWrapper::Strip(strip) => strip.stop == 0,
                    step => matches!(step, DecoderWrapper::Fuse(_)),
                };
                before.iter().all(is_of_token) && after.iter().all(is_start)
            }
            Some(step) => is_of_token(step),
        };
        match is_local.then(|| anchor(tokenizer)).flatten() {
            Some(anchor) => Self::First { anchor },
            None => Self::All,
        }
    }
}

/// Does this step read a token, and whether it is the first, alone? Or bytes beside one another.
fn is_of_token(step: &DecoderWrapper) -> bool {
    use DecoderWrapper::*;
    matches!(step, WordPiece(_) | Metaspace(_) | Replace(_) | Fuse(_) | Strip(_) | ByteFallback(_))
}

/// A token of letters that has a text, with it.
fn anchor(tokenizer: &Tokenizer) -> Option<(u32, String)> {
    let has_letter = |token: &str| token.chars().any(char::is_alphanumeric) && !is_byte(token);
    (0..tokenizer.get_vocab_size(true) as u32).find_map(|id| {
        tokenizer.id_to_token(id).filter(|token| has_letter(token))?;
        let text = |ids: &[u32]| guarded(|| tokenizer.decode(ids, true)).ok();
        let one = text(&[id]).filter(|text| !text.is_empty())?;
        text(&[id, id])?.starts_with(&one).then_some((id, one))
    })
}

/// Is this the name of a byte, as sentencepiece writes it: `<0x0A>`?
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|token| token.strip_suffix('>')).filter(|digits| digits.len() == 2);
    digits.is_some_and(|digits| u8::from_str_radix(digits, 16).is_ok())
}

impl Text {
    /// The text that one more token makes certain: nothing where a character is not complete. All pieces together, and
    /// [`rest`](Self::rest), are what [`decode`](Self::decode) gives.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn piece(&self, pieces: &mut Pieces, token: u32) -> Result<String> {
        // As in whole texts, special tokens and those that there are not have no text, and part nothing.
        let name = self.tokenizer.id_to_token(token);
        let Some(name) = name.filter(|name| !self.tokenizer.get_added_vocabulary().is_special_token(name)) else {
            return Ok(String::new());
        };
        match &self.dependence {
            Dependence::Bytes => {
                let bytes: Option<Vec<u8>> = name.chars().map(byte).collect();
                pieces.bytes.extend(bytes.unwrap_or_else(|| name.into_bytes()));
                Ok(complete(&mut pieces.bytes))
            }
            Dependence::First { .. } => {
                pieces.ids.push(token);
                if is_byte(&name) {
                    return Ok(String::new());
                }
                let text = self.held(pieces)?;
                if pieces.has_begun || !text.is_empty() {
                    pieces.has_begun = true;
                    pieces.ids.clear();
                }
                Ok(text)
            }
            Dependence::All => {
                pieces.ids.push(token);
                Ok(String::new())
            }
        }
    }

    /// What is held back when a text ends.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn rest(&self, pieces: &Pieces) -> Result<String> {
        match &self.dependence {
            Dependence::Bytes => Ok(String::from_utf8_lossy(&pieces.bytes).into_owned()),
            Dependence::First { .. } | Dependence::All => self.held(pieces),
        }
    }

    /// What gives the text of tokens one by one, without the [rest](Self::rest); see [`piece`](Self::piece).
    pub fn pieces(&self) -> impl FnMut(u32) -> Result<String> + '_ {
        let mut pieces = Pieces::default();
        move |token| self.piece(&mut pieces, token)
    }

    /// The text of the tokens that are held back.
    fn held(&self, pieces: &Pieces) -> Result<String> {
        match &self.dependence {
            Dependence::First { anchor: (id, before) } if pieces.has_begun && !pieces.ids.is_empty() => {
                let ids: Vec<u32> = std::iter::once(*id).chain(pieces.ids.iter().copied()).collect();
                let text = self.decode(&ids)?;
                let reason = || DecoderError::Tokenizer("its decoder changes texts that were told".into());
                text.strip_prefix(before).map(str::to_owned).ok_or_else(reason)
            }
            _ if pieces.ids.is_empty() => Ok(String::new()),
            _ => self.decode(&pieces.ids),
        }
    }
}

/// Takes out the characters that are complete. Bytes that are no character become U+FFFD.
fn complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    loop {
        let (valid, wrong) = match std::str::from_utf8(bytes) {
            Ok(all) => (all.len(), Some(0)),
            Err(error) => (error.valid_up_to(), error.error_len()),
        };
        text.push_str(&String::from_utf8_lossy(&bytes[..valid]));
        let Some(wrong) = wrong else {
            bytes.drain(..valid);
            return text;
        };
        bytes.drain(..valid + wrong);
        if wrong == 0 {
            return text;
        }
        text.push(char::REPLACEMENT_CHARACTER);
    }
}
