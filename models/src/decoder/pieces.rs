//! The text of tokens that come one by one.

use super::byte_letters::byte;
use super::dependence::{is_byte, Dependence};
use super::error::{DecoderError, Result};
use super::text::Text;

/// What is held back of a text whose tokens come one by one: that which may depend on tokens to come.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    /// Tokens whose text is not certain.
    ids: Vec<u32>,
    /// Bytes of a character that is not complete.
    bytes: Vec<u8>,
    /// Whether there was text before them.
    has_begun: bool,
    /// Whether special tokens are told by their names.
    names_special: bool,
}

impl Pieces {
    /// Special tokens are told by their names, where otherwise they have no text.
    pub fn naming_special() -> Self {
        Self { names_special: true, ..Self::default() }
    }
}

impl Text {
    /// The text that one more token makes certain: nothing where a character is not complete. All pieces together, and
    /// [`rest`](Self::rest), are what [`decode`](Self::decode) gives.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn piece(&self, pieces: &mut Pieces, token: u32) -> Result<String> {
        let Some(name) = self.tokenizer.id_to_token(token) else { return Ok(String::new()) };
        if self.tokenizer.get_added_vocabulary().is_special_token(&name) {
            // As in whole texts, they have no text, and part nothing.
            if !pieces.names_special {
                return Ok(String::new());
            }
            let text = self.rest(pieces)? + &name;
            *pieces = Pieces { has_begun: true, ..Pieces::naming_special() };
            return Ok(text);
        }
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

    /// The text of tokens, with the names of special ones.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn decode_all(&self, tokens: &[u32]) -> Result<String> {
        let mut pieces = Pieces::naming_special();
        let text = tokens.iter().map(|token| self.piece(&mut pieces, *token)).collect::<Result<String>>()?;
        Ok(text + &self.rest(&pieces)?)
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
