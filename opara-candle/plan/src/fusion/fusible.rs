//! Ops that a group can hold.

use super::strided_view::StridedView;
use crate::trace::BufferId;

/// An op that a group can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fusible {
    /// The number of elements that it computes.
    pub elements: u64,
    /// The length of a row, if each of its results depends on a whole row.
    pub columns: Option<u64>,
    /// Is it a row reduction? It gives one scalar per row instead of one per element.
    pub reduces: bool,
    /// The tensors that it reads.
    pub operands: Vec<Operand>,
    /// The buffer that it writes, all of it.
    pub result: BufferId,
    /// Is a generated kernel faster even for this op alone?
    pub gains_alone: bool,
}

/// One tensor that a fusible op reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The buffer that it reads.
    pub buffer: BufferId,
    /// The strided view of the buffer that it reads.
    pub view: StridedView,
    /// The element of the buffer at which the view begins, if it begins at one.
    pub first: Option<u64>,
}

/// The relation between element `i` of an op and the elements of an operand that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadPattern {
    /// Element `i` of the operand, or its whole row if the op reads rows.
    Element,
    /// Scalar `i / columns`: one per row.
    RowScalar(u64),
    /// Any other.
    Other,
}

impl Operand {
    pub(super) fn pattern(&self) -> ReadPattern {
        match self.view.row_scalar_columns() {
            _ if self.first != Some(0) => ReadPattern::Other,
            Some(columns) => ReadPattern::RowScalar(columns),
            None if self.view.is_contiguous() => ReadPattern::Element,
            None => ReadPattern::Other,
        }
    }

    /// The order in which all elements are read, if it is not the memory order.
    pub(super) fn order(&self, elements: u64) -> Option<StridedView> {
        let permutes = self.first == Some(0) && !self.view.is_contiguous() && self.view.is_permutation(elements);
        permutes.then_some(self.view)
    }
}
