//! Kernel fusion: finds groups of element-wise and row-wise ops that one generated kernel can replace.
//!
//! Input: a trace, and a description of its fusible ops. Output: [`FusionGroup`]s, in recorded order. Results keep
//! their bits: every op inside a group rounds exactly as its own kernel does.
//!
//! An op joins a group if it reads the group's results element by element, or one scalar per row. (A norm reads a whole
//! row for each element; a row reduction such as a sum gives one scalar per row.) A group may hold one op that reads in
//! another order, such as a contiguous copy of a transposed tensor; the ops before it then run in that order. If all
//! readers of a result read slices of it, such as the queries, keys and values of one biased matmul, each of them
//! recomputes its own slice, and the full result is never stored.

mod grouping;
mod strided_view;
#[cfg(test)]
mod tests;

use self::grouping::Grouping;
pub use self::strided_view::StridedView;
use crate::trace::{BufferId, OpId, Trace};

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
enum ReadPattern {
    /// Element `i` of the operand, or its whole row if the op reads rows.
    Element,
    /// Scalar `i / columns`: one per row.
    RowScalar(u64),
    /// Any other.
    Other,
}

impl Operand {
    fn pattern(&self) -> ReadPattern {
        match self.view.row_scalar_columns() {
            _ if self.first != Some(0) => ReadPattern::Other,
            Some(columns) => ReadPattern::RowScalar(columns),
            None if self.view.is_contiguous() => ReadPattern::Element,
            None => ReadPattern::Other,
        }
    }

    /// The order in which all elements are read, if it is not the memory order.
    fn order(&self, elements: u64) -> Option<StridedView> {
        let permutes = self.first == Some(0) && !self.view.is_contiguous() && self.view.is_permutation(elements);
        permutes.then_some(self.view)
    }
}

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

/// Finds groups of up to `max_members` ops, and generates a kernel for each with `generate`. `fusible` describes the
/// ops that can be in a group. Only ops that are recomputed, before a permutation, can be in several groups.
///
/// An op joins the group whose results it reads element by element, or one scalar per row, if all its other operands
/// are available where the group runs. Otherwise the group moves to the op's position, if no op outside has read its
/// results before. Ops that depend on an input are never in one group with ops that do not, since the latter run only
/// once.
///
/// The position of a group depends on the other groups. So if `generate` returns `None` for a group, its last op is
/// excluded, and all groups are searched again. The same happens if an op turns out to need the full result of a group
/// that others recompute in slices.
///
/// # Complexity
/// Linear in accesses per search.
pub fn groups<T>(
    trace: &Trace,
    mut fusible: Vec<Option<&Fusible>>,
    max_members: usize,
    generate: impl Fn(&FusionGroup) -> Option<T>,
) -> Vec<(FusionGroup, T)> {
    loop {
        let found = find(trace, &fusible, max_members);
        let generated: Vec<Option<T>> = found.iter().map(&generate).collect();
        let refused = found.iter().zip(&generated).filter(|(_, generated)| generated.is_none());
        let last: Vec<OpId> = refused.filter_map(|(group, _)| group.members.last().copied()).collect();
        if last.is_empty() {
            return found
                .into_iter()
                .zip(generated)
                .filter_map(|(group, generated)| Some((group, generated?)))
                .collect();
        }
        last.into_iter().for_each(|op| fusible[op] = None);
    }
}

fn find(trace: &Trace, fusible: &[Option<&Fusible>], max_members: usize) -> Vec<FusionGroup> {
    let mut is_needed_whole = vec![false; trace.ops.len()];
    loop {
        let mut grouping = Grouping::new(trace, fusible, &is_needed_whole, max_members);
        for (op, launch) in trace.ops.iter().enumerate() {
            if let Some(fusible) = fusible[op] {
                grouping.add(op, fusible);
            }
            grouping.note_accesses(op, launch);
        }
        match grouping.finish() {
            Ok(found) => return found,
            Err(ops) => ops.into_iter().for_each(|op| is_needed_whole[op] = true),
        }
    }
}
