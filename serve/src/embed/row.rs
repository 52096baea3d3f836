//! A text as token ids.

use super::VectorOptions;

/// A text as token ids, without padding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextRow {
    /// Ids of the model's vocabulary.
    pub ids: Vec<u32>,
    /// A token type for each id; empty if all are 0.
    pub types: Vec<u32>,
    /// Tokens at the beginning that are a prompt's and are not pooled.
    pub unpooled: usize,
    /// Whether the answer is the hidden state of every token, one behind another.
    pub has_tokens: bool,
    /// What its vector is like.
    pub vector: VectorOptions,
}

/// All of type 0, and pooled.
impl From<Vec<u32>> for TextRow {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }
}

/// The ids alone, for engines that take nothing else.
impl From<TextRow> for Vec<u32> {
    fn from(row: TextRow) -> Self {
        row.ids
    }
}
