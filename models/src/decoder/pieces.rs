//! The text of tokens that come one by one.

use tokenizers::step_decode_stream;

use super::error::{DecoderError, Result};
use super::text::Text;

/// What is held back of a text whose tokens come one by one, until its last character is complete.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    /// Tokens whose text is not complete, and those before them that it depends on.
    ids: Vec<u32>,
    /// The text of the latter.
    prefix: String,
    prefix_index: usize,
}

impl Text {
    /// The text that one more token completes: nothing where a character is not complete. All pieces together, and
    /// [`rest`](Self::rest), are what [`decode`](Self::decode) gives.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn piece(&self, pieces: &mut Pieces, token: u32) -> Result<String> {
        let Pieces { ids, prefix, prefix_index } = pieces;
        let piece = step_decode_stream(&self.tokenizer, vec![token], true, ids, prefix, prefix_index);
        Ok(piece.map_err(DecoderError::Tokenizer)?.unwrap_or_default())
    }

    /// What is held back when a text ends.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn rest(&self, pieces: &Pieces) -> Result<String> {
        let text = self.decode(&pieces.ids)?;
        Ok(text.strip_prefix(&pieces.prefix).unwrap_or_default().to_owned())
    }

    /// What gives the text of tokens one by one; see [`piece`](Self::piece).
    pub fn pieces(&self) -> impl FnMut(u32) -> Result<String> + '_ {
        let mut pieces = Pieces::default();
        move |token| self.piece(&mut pieces, token)
    }
}
