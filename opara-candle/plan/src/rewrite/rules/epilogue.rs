//! What follows a convolution and can be part of it.

use super::{Better, Facts};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand, Step};
use crate::trace::{Dim, Function};

/// Sums with one number a channel.
pub(super) fn bias(facts: &Facts, at: usize) -> Option<Better> {
    absorbed(facts, at, |step, before| step == Step::Add && before.iter().all(|step| *step == Step::Add))
}

/// All that has one number a channel.
pub(super) fn norm(facts: &Facts, at: usize) -> Option<Better> {
    absorbed(facts, at, |_, _| true)
}

/// A sum with something else of the same shape, as at the end of a residual block.
pub(super) fn residual(facts: &Facts, at: usize) -> Option<Better> {
    let [a, b] = facts.binary(at, "add")?;
    with_residual(facts, at, [a, b]).or_else(|| with_residual(facts, at, [b, a]))
}

fn with_residual(facts: &Facts, at: usize, [y, other]: [&Operand; 2]) -> Option<Better> {
    let (node, before) = (facts.node(at), facts.node(convolution(facts, y)?));
    let Compute::FusedConvolution { window, steps, residual: false, relu: false } = &before.compute else {
        return None;
    };
    let [_, channels, ..] = before.operands[0].dims[..] else { return None };
    // Each group of one channel has a kernel of its own, which adds nothing.
    let is_dense = window.groups == 1 || window.groups < channels.len;
    let fits = before.element == node.element && facts.have_type_of(node, [other]) && other.is_run_of(node.len);
    if !is_dense || !fits || before.len != node.len {
        return None;
    }
    let compute = Compute::FusedConvolution { window: *window, steps: steps.clone(), residual: true, relu: false };
    let operands = before.operands.iter().cloned().chain([other.clone()]).collect();
    let launches = node.launches + before.launches;
    Some(Better { node: Node { compute, operands, launches, ..node.clone() }, saved: 1 })
}

/// `max(x, 0)`.
pub(super) fn relu(facts: &Facts, at: usize) -> Option<Better> {
    let before = facts.node(convolution(facts, facts.unary(at, "relu")?)?);
    let Compute::FusedConvolution { window, steps, residual, relu: false } = &before.compute else { return None };
    let compute = Compute::FusedConvolution { window: *window, steps: steps.clone(), residual: *residual, relu: true };
    let launches = facts.node(at).launches + before.launches;
    Some(Better { node: Node { compute, launches, ..before.clone() }, saved: 1 })
}

/// The convolution whose result is this operand, if nothing else reads that.
fn convolution(facts: &Facts, operand: &Operand) -> Option<usize> {
    facts.only(operand).filter(|&of| matches!(facts.node(of).compute, Compute::FusedConvolution { .. }))
}

/// A convolution that takes over a binary function of its result and of a constant with one number a channel, if `takes` the step
/// behind those before it.
fn absorbed(facts: &Facts, at: usize, takes: impl Fn(Step, &[Step]) -> bool) -> Option<Better> {
    let node = facts.node(at);
    let Function::Binary(name) = facts.recorded(at)? else { return None };
    let (step, [a, b]) = (Step::of(name)?, &node.operands[..]) else { return None };
    let commutes = matches!(step, Step::Add | Step::Mul);
    let (of, other) = match convolution(facts, a) {
        Some(of) => (of, b),
        None if commutes => (convolution(facts, b)?, a),
        None => return None,
    };
    let before = facts.node(of);
    let Compute::FusedConvolution { window, steps, residual: false, relu: false } = &before.compute else {
        return None;
    };
    if before.len != node.len || before.element != node.element || !takes(step, steps) || !facts.is_constant(other) {
        return None;
    }
    let vector = of_channels(facts, &before.operands, window.groups, window.kernel, other, before.len)?;
    let steps = steps.iter().copied().chain([step]).collect();
    let compute = Compute::FusedConvolution { window: *window, steps, residual: false, relu: false };
    let operands = before.operands.iter().cloned().chain([vector]).collect();
    Some(Better {
        node: Node { compute, operands, launches: node.launches + before.launches, ..node.clone() },
        saved: 1,
    })
}

/// The operand as a vector of one element a channel of a convolution's result of `len` elements. The convolution may be transposed.
pub(super) fn of_channels(
    facts: &Facts,
    operands: &[Operand],
    groups: u64,
    [rows, columns]: [u64; 2],
    other: &Operand,
    len: u64,
) -> Option<Operand> {
    let [images, channels, ..] = operands[0].dims[..] else { return None };
    let out = operands[1].len().checked_div((channels.len / groups).checked_mul(rows * columns)?)?;
    let plane = len.checked_div(images.len * out)?;
    let is_same_type = facts.graph.element(other.value) == facts.graph.element(operands[0].value);
    if plane * images.len * out != len || other.len() != len || !is_same_type {
        return None;
    }
    let strides = strides_over(&other.dims, &[images.len, out, plane])?;
    let [0, stride, 0] = strides[..] else { return None };
    Some(Operand { dims: vec![Dim { len: out, stride }], ..other.clone() })
}
