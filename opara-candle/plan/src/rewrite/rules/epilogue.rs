//! Epilogues of convolutions: bias, norm, residual and activation.

use super::concat::ends_in_relu;
use super::facts::Activated;
use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Convolution, Node, Operand, Step};
use crate::trace::{Dim, Function};

/// Sums with one number a channel.
pub(super) fn bias(facts: &Facts, at: usize) -> Option<Replacement> {
    absorbed(facts, at, |step, before| step == Step::Add && before.iter().all(|step| *step == Step::Add))
}

/// All that has one number a channel.
pub(super) fn norm(facts: &Facts, at: usize) -> Option<Replacement> {
    absorbed(facts, at, |_, _| true)
}

/// A sum with something else of the same shape, as at the end of a residual block. Sums that `concat-sums`
/// takes stay for it: the concatenation reads both summands in the launch that it needs anyway.
pub(super) fn residual(facts: &Facts, at: usize) -> Option<Replacement> {
    let [a, b] = facts.binary(at, "add")?;
    if ends_in_relu(facts, at) {
        return None;
    }
    with_residual(facts, at, [a, b]).or_else(|| with_residual(facts, at, [b, a]))
}

fn with_residual(facts: &Facts, at: usize, [y, other]: [&Operand; 2]) -> Option<Replacement> {
    let node = facts.node(at);
    let (before, of) = bare(facts, facts.only(y)?)?;
    // Each group of one channel has a kernel of its own, which adds nothing.
    let fits = before.element == node.element && facts.have_type_of(node, [other]) && other.is_run_of(node.len);
    if of.residual || is_depthwise(before, of) || !fits || before.len != node.len {
        return None;
    }
    let compute = Compute::FusedConvolution(Convolution { residual: true, ..of.clone() });
    let operands = before.operands.iter().cloned().chain([other.clone()]).collect();
    let launches = node.launches + before.launches;
    Some(Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved: 1 })
}

/// The activation, last of all: `max(x, 0)`, and `x * sigmoid(x)` of a depthwise convolution.
pub(super) fn activation(facts: &Facts, at: usize) -> Option<Replacement> {
    let Activated { name, of, launches } = facts.activation(at)?;
    let (before, of) = bare(facts, of)?;
    let is_known = name == "relu" || (name == "silu" && is_depthwise(before, of));
    let compute = Compute::FusedConvolution(Convolution { activation: Some(name), ..of.clone() });
    let (saved, launches) = (launches, launches + before.launches);
    is_known.then(|| Replacement { node: Node { compute, launches, ..before.clone() }, saved })
}

/// The convolution that a node is, if no activation follows it yet.
fn bare<'a>(facts: &'a Facts, at: usize) -> Option<(&'a Node, &'a Convolution)> {
    let node = facts.node(at);
    match &node.compute {
        Compute::FusedConvolution(of) if of.activation.is_none() => Some((node, of)),
        _ => None,
    }
}

/// Whether each group has one channel, and one result of each window.
pub(super) fn is_depthwise(node: &Node, of: &Convolution) -> bool {
    let ([_, channels, ..], [rows, columns]) = (&node.operands[0].dims[..], of.window.kernel) else { return false };
    let groups = of.window.groups;
    groups > 1 && groups == channels.len && Some(node.operands[1].len()) == groups.checked_mul(rows * columns)
}

/// A convolution that takes over a binary function of its result and of a constant with one number a channel, if `takes` the step
/// behind those before it.
fn absorbed(facts: &Facts, at: usize, takes: impl Fn(Step, &[Step]) -> bool) -> Option<Replacement> {
    let node = facts.node(at);
    let Function::Binary(name) = facts.recorded(at)? else { return None };
    let (step, [a, b]) = (Step::of(name)?, &node.operands[..]) else { return None };
    let commutes = matches!(step, Step::Add | Step::Mul);
    let convolution = |operand: &Operand| bare(facts, facts.only(operand)?);
    let ((before, of), other) = match convolution(a) {
        Some(found) => (found, b),
        None if commutes => (convolution(b)?, a),
        None => return None,
    };
    if of.residual || before.len != node.len || before.element != node.element {
        return None;
    }
    if !takes(step, &of.steps) || !facts.is_constant(other) {
        return None;
    }
    let vector = of_channels(facts, &before.operands, of.window.groups, of.window.kernel, other, before.len)?;
    let steps = of.steps.iter().copied().chain([step]).collect();
    let compute = Compute::FusedConvolution(Convolution { steps, ..of.clone() });
    let operands = before.operands.iter().cloned().chain([vector]).collect();
    Some(Replacement {
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
