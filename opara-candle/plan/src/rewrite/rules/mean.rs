//! Means of rows, and of planes one dimension after the other.

use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand};
use crate::trace::{is_contiguous, Dim, Function};

/// Lets a sum of rows and its factor be one launch, and a mean of such means that make up planes.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let outer = Mean::of(facts, at)?;
    // The next mean takes this one in.
    let next = |at: usize| match facts.users[at][..] {
        [user] if user < facts.graph.nodes.len() => Some(user),
        _ => None,
    };
    let planes = next(at).and_then(next).and_then(|next| of_planes(facts, at, &Mean::of(facts, next)?));
    if planes.is_some() {
        return None;
    }
    let mean = facts.only(&outer.x).and_then(|inner| of_planes(facts, inner, &outer)).unwrap_or(outer);
    // Rows of another order stay candle's.
    let node = facts.node(at);
    let fits = is_contiguous(&mean.x.dims) && facts.have_type_of(node, [&mean.x]);
    let saved = mean.parts.iter().map(|&part| facts.node(part).launches).sum();
    let compute = Compute::RowMean { columns: mean.columns, factor: mean.factor };
    let (operands, launches) = (vec![mean.x], node.launches + saved);
    fits.then(|| Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved })
}

/// Sums of rows, times a factor.
struct Mean {
    x: Operand,
    columns: u64,
    factor: f32,
    /// The nodes before the last that it is made of.
    parts: Vec<usize>,
}

impl Mean {
    /// The one that a node is.
    fn of(facts: &Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        let [operand] = &node.operands[..] else { return None };
        let Function::Affine(factor, 0.) = *facts.recorded(at)? else { return None };
        let sum = facts.only(operand)?;
        let (Function::RowSum(columns), [x]) = (facts.recorded(sum)?, &facts.node(sum).operands[..]) else {
            return None;
        };
        let fits = facts.node(sum).element == node.element && node.element.is_float();
        fits.then(|| Self { x: x.clone(), columns: *columns, factor, parts: vec![sum] })
    }
}

/// The mean of planes that a mean of the means of their rows, or of their columns, is.
fn of_planes(facts: &Facts, at: usize, outer: &Mean) -> Option<Mean> {
    let inner = Mean::of(facts, at)?;
    let columns = inner.columns.checked_mul(outer.columns)?;
    let planes = inner.x.len().checked_div(columns)?;
    let strides = strides_over(&inner.x.dims, &[planes, outer.columns, inner.columns])?;
    let follow = (strides[0] == columns || planes == 1) && inner.x.len() == planes * columns;
    let are_planes = strides[1..] == [inner.columns, 1] || strides[1..] == [1, outer.columns];
    let fits = follow && are_planes && facts.node(at).element == facts.graph.element(inner.x.value);
    let x = Operand { dims: vec![Dim { len: inner.x.len(), stride: 1 }], ..inner.x };
    let parts = [&outer.parts[..], &inner.parts, &[at]].concat();
    fits.then_some(Mean { x, columns, factor: inner.factor * outer.factor, parts })
}
