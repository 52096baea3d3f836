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

mod fusible;
mod group;
mod grouping;
mod strided_view;
#[cfg(test)]
mod tests;

pub use self::fusible::{Fusible, Operand};
pub use self::group::{FusionGroup, Permutation};
use self::grouping::Grouping;
pub use self::strided_view::StridedView;
use crate::trace::{OpId, Trace};

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
