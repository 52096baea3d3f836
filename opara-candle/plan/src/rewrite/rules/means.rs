//! Means of rows, and of planes one dimension after the other.

use super::found::Found;
use super::pattern::{pattern, Pattern};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand};
use crate::trace::{is_contiguous, Dim, Function};

/// A mean of means of rows, or of columns.
pub(super) const OF_MEANS: Pattern = pattern!(times(outer = row_sum(mean = times(inner = row_sum(x)))));

/// Lets a mean of the means that make up planes be one launch.
pub(super) fn join_planes(found: &Found) -> Option<Node> {
    let (x, [inner, outer]) = (found.operand("x")?, [columns(found, "inner")?, columns(found, "outer")?]);
    let columns = inner.checked_mul(outer)?;
    let planes = x.len().checked_div(columns)?;
    let strides = strides_over(&x.dims, &[planes, outer, inner])?;
    let follow = (strides[0] == columns || planes == 1) && x.len() == planes * columns;
    let are_planes = strides[1..] == [inner, 1] || strides[1..] == [1, outer];
    let [factor, _] = found.affine("mean")?;
    let x = Operand { dims: vec![Dim { len: x.len(), stride: 1 }], ..x.clone() };
    (follow && are_planes).then(|| make_mean(found, x, columns, factor))?
}

/// Lets a sum of rows and its factor be one launch, if no mean of planes takes that in.
pub(super) fn join_rows(found: &Found) -> Option<Node> {
    let (facts, x) = (found.facts, found.operand("x")?);
    let next = facts.reader(found.at).and_then(|sum| facts.reader(sum));
    let is_part = |next| Found::find_all(facts, &OF_MEANS, next).iter().any(|found| join_planes(found).is_some());
    // Rows of another order stay candle's.
    let fits = is_contiguous(&x.dims) && !next.is_some_and(is_part);
    fits.then(|| make_mean(found, x.clone(), columns(found, "inner")?, 1.))?
}

/// Sums of rows of `x`, times both factors: this one, and the root's.
fn make_mean(found: &Found, x: Operand, columns: u64, factor: f32) -> Option<Node> {
    let Function::Affine(own, _) = *found.facts.recorded(found.at)? else { return None };
    let compute = Compute::RowMean { columns, factor: factor * own };
    found.root().element.is_float().then(|| found.replace_by(compute, vec![x]))
}

/// Elements of the rows of this name that are summed.
fn columns(found: &Found, name: &str) -> Option<u64> {
    match found.node(name)?.compute {
        Compute::Recorded(Function::RowSum(columns)) => Some(columns),
        _ => None,
    }
}
