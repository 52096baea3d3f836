//! Queries of several heads that share keys and values, which some models put beside each other as queries of one head.

use crate::rewrite::graph::{strides_over, Operand};
use crate::trace::Dim;

/// Queries, `(heads, tokens, size)`, divided among more heads of fewer tokens, as many as the masks of their scores have rows. `None`
/// if the masks do not repeat.
pub(super) fn apart(q: &Operand, keys: u64, masks: &[&Operand]) -> Option<Operand> {
    let [heads, tokens, size] = q.dims[..] else { return None };
    let is_view = |mask: &&&Operand| strides_over(&mask.dims, &[heads.len, tokens.len, keys]).is_some();
    let mask = masks.iter().find(|mask| !is_view(mask))?;
    let [.., rows, columns] = mask.dims[..] else { return None };
    let fits = columns.len == keys && rows.len > 0 && rows.len < tokens.len && tokens.len.is_multiple_of(rows.len);
    let shape = [heads.len * (tokens.len.checked_div(rows.len)?), rows.len, size.len];
    let strides = strides_over(&q.dims, &shape).filter(|_| fits)?;
    let dims = shape.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
    Some(Operand { dims, ..q.clone() })
}
