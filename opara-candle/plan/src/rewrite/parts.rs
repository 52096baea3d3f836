//! Parts of buffers that a run fills one after the other.

use super::compute::Compute;
use super::graph::{Node, Operand};
use crate::trace::{is_contiguous, Dim, Element};

/// A part of a buffer.
pub(super) struct Part {
    pub first: u64,
    pub dims: Vec<Dim>,
    pub operand: Operand,
    pub element: Element,
}

/// The concatenation that parts of a buffer are, if they fill it.
pub(super) fn concat(parts: &[Part], bytes: u64) -> Option<Node> {
    let element = parts.first()?.element;
    let len = bytes / element.bytes();
    let mut parts: Vec<&Part> = parts.iter().collect();
    parts.sort_by_key(|part| part.first);
    // Each part has runs of one width, as far from each other as the whole row is wide; all in one run are one row.
    let runs = |part: &Part| match part.dims[..] {
        _ if is_contiguous(&part.dims) => None,
        [Dim { len: rows, stride }, Dim { len: width, stride: 1 }] => Some((rows, stride, width)),
        _ => Some((0, 0, 0)),
    };
    let (rows, row) = match parts.iter().find_map(|part| runs(part)) {
        Some((rows, stride, _)) => (rows, stride),
        None => (1, len),
    };
    let mut widths = Vec::with_capacity(parts.len());
    let mut at = 0;
    for part in &parts {
        let width = match runs(part) {
            Some((of_rows, stride, width)) if (of_rows, stride) == (rows, row) => width,
            None if rows == 1 => part.operand.len(),
            _ => return None,
        };
        if part.first != at || part.element != element {
            return None;
        }
        at += width;
        widths.push(width);
    }
    if at != row || rows.checked_mul(row) != Some(len) {
        return None;
    }
    let operands = parts.iter().map(|part| part.operand.clone()).collect();
    Some(Node::new(Compute::Concat { rows, widths }, operands, element, len))
}
