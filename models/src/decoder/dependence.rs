//! What the text of a token depends on.

use tokenizers::{DecoderWrapper, Tokenizer};

use crate::tokenizer::guarded;

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
pub(super) fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|token| token.strip_suffix('>')).filter(|digits| digits.len() == 2);
    digits.is_some_and(|digits| u8::from_str_radix(digits, 16).is_ok())
}
