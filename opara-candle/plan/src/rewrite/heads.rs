//! How attention reads a cache.

use super::graph::{strides_over, Operand};
use super::pairs::Appended;

/// How the heads of an operand of attention lie in what they were appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    pub heads: u64,
    pub size: u64,
    pub by_token: bool,
}

impl Heads {
    /// Of one text, if all of it is read, by heads. `row` are the elements of a run.
    pub fn of(operand: &Operand, tokens: u64, of: &Appended, row: u64) -> Option<Self> {
        let [.., heads, of_tokens, size] = operand.dims[..] else { return None };
        let is_one_text = operand.dims.len() == 3 || operand.dims.len() == 4 && operand.dims[0].len == 1;
        if !is_one_text || operand.first != 0 || of_tokens.len != tokens || heads.len * size.len != of.token {
            return None;
        }
        let strides = strides_over(&operand.dims, &[heads.len, tokens, size.len])?;
        // The tokens of a run follow one another.
        let by_token = of.rows == 1;
        let lies = strides[2] == 1
            && match by_token {
                true => strides[1] == of.token && (strides[0] == size.len || heads.len == 1),
                false => of.rows == heads.len && strides[1] == size.len && strides[0] == row,
            };
        lies.then_some(Self { heads: heads.len, size: size.len, by_token })
    }
}
