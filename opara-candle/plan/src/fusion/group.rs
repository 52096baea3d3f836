//! Groups of ops.

use super::strided_view::StridedView;
use crate::trace::OpId;

/// Ops that one generated kernel replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusionGroup {
    /// The ops, in recorded order.
    pub members: Vec<OpId>,
    /// The member whose position in the trace the kernel takes.
    pub at: OpId,
    /// For each member: is its result stored, for other ops or as an output?
    pub is_stored: Vec<bool>,
    /// For each member: does it run on one scalar per row (after a row reduction) instead of on every element?
    pub is_row_scalar: Vec<bool>,
    /// The number of elements that all other members compute.
    pub elements: u64,
    /// The length of a row, if any member reads rows.
    pub columns: Option<u64>,
    /// The permutation or slice that ends the leading members, if there is one.
    pub permutation: Option<Permutation>,
}

impl FusionGroup {
    /// The order in which a member runs over its elements, and the first element.
    pub fn order(&self, member: usize) -> (StridedView, u64) {
        let permutation = self.permutation.filter(|permutation| member < permutation.before);
        permutation.map(|permutation| (permutation.order, permutation.first)).unwrap_or_default()
    }
}

/// A permutation or slice inside a group: one member reads the results of the members before it in another order, or
/// only some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    /// The number of members before it.
    pub before: usize,
    /// The order in which it reads: element `i` is element `first + order(i)` of the results before.
    pub order: StridedView,
    /// The element that the order starts from.
    pub first: u64,
}
