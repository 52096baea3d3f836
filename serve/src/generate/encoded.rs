//! A prompt as tokens.

/// A prompt as the model reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether it ends within the model's reasoning.
    pub is_thinking: bool,
}

impl From<Vec<u32>> for Encoded {
    fn from(tokens: Vec<u32>) -> Self {
        Self { tokens, is_thinking: false }
    }
}
