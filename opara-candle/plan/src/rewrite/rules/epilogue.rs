//! What follows a convolution and can be part of it.

use super::super::graph::{strides_over, Compute, Graph, Operand, Step, Value};
use super::Applied;
use crate::trace::{Dim, Function};

/// Sums with one number a channel.
pub(super) fn bias(graph: &mut Graph) -> Applied {
    absorb(graph, |step, before| step == Step::Add && before.iter().all(|step| *step == Step::Add))
}

/// All that has one number a channel.
pub(super) fn norm(graph: &mut Graph) -> Applied {
    absorb(graph, |_, _| true)
}

/// `max(x, 0)`.
pub(super) fn relu(graph: &mut Graph) -> Applied {
    let (users, mut applied) = (graph.users(), Applied::default());
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let Compute::Recorded(Function::Unary(name)) = &node.compute else { continue };
        let [operand] = &node.operands[..] else { continue };
        let Some(of) = convolution(graph, &users, operand, node.len).filter(|_| name == "relu") else { continue };
        let before = graph.nodes[of].clone();
        if let Compute::FusedConvolution { window, steps, relu: false } = before.compute {
            let node = &mut graph.nodes[at];
            node.compute = Compute::FusedConvolution { window, steps, relu: true };
            node.operands = before.operands;
            node.launches += before.launches;
            applied.times += 1;
            applied.saved += 1;
        }
    }
    applied
}

/// The convolution whose result is this operand, if nothing else reads that.
fn convolution(graph: &Graph, users: &[Vec<usize>], operand: &Operand, len: u64) -> Option<usize> {
    let Value::Node(of) = operand.value else { return None };
    let node = &graph.nodes[of];
    let is_convolution = matches!(node.compute, Compute::FusedConvolution { .. });
    (is_convolution && node.len == len && operand.is_whole(len) && users[of].len() == 1).then_some(of)
}

/// Lets convolutions take over binary functions of their results and of constants with one number a channel, where `takes` the
/// step behind those before it.
fn absorb(graph: &mut Graph, takes: impl Fn(Step, &[Step]) -> bool) -> Applied {
    let (users, constant, mut applied) = (graph.users(), graph.constant(), Applied::default());
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let Compute::Recorded(Function::Binary(name)) = &node.compute else { continue };
        let (Some(step), [a, b]) = (Step::of(name), &node.operands[..]) else { continue };
        let commutes = matches!(step, Step::Add | Step::Mul);
        let found = match convolution(graph, &users, a, node.len) {
            Some(of) => Some((of, b)),
            None if commutes => convolution(graph, &users, b, node.len).map(|of| (of, a)),
            None => None,
        };
        let Some((of, other)) = found else { continue };
        let before = graph.nodes[of].clone();
        let Compute::FusedConvolution { window, mut steps, relu: false } = before.compute else { continue };
        let is_constant = match other.value {
            Value::Input(input) => graph.inputs[input].is_weight,
            Value::Node(of) => constant[of],
        };
        let Some(vector) = of_channels(graph, &before.operands, window.groups, window.kernel, other, before.len) else {
            continue;
        };
        if !is_constant || before.element != node.element || !takes(step, &steps) {
            continue;
        }
        steps.push(step);
        let node = &mut graph.nodes[at];
        node.compute = Compute::FusedConvolution { window, steps, relu: false };
        node.operands = before.operands.into_iter().chain([vector]).collect();
        node.launches += before.launches;
        applied.times += 1;
        applied.saved += 1;
    }
    applied
}

/// The operand as a vector of one element a channel of a convolution's result of `len` elements.
fn of_channels(
    graph: &Graph,
    operands: &[Operand],
    groups: u64,
    [rows, columns]: [u64; 2],
    other: &Operand,
    len: u64,
) -> Option<Operand> {
    let [images, channels, ..] = operands[0].dims[..] else { return None };
    let out = operands[1].len().checked_div((channels.len / groups).checked_mul(rows * columns)?)?;
    let plane = len.checked_div(images.len * out)?;
    if plane * images.len * out != len
        || other.len() != len
        || graph.element(other.value) != graph.element(operands[0].value)
    {
        return None;
    }
    let strides = strides_over(&other.dims, &[images.len, out, plane])?;
    let [0, stride, 0] = strides[..] else { return None };
    Some(Operand { dims: vec![Dim { len: out, stride }], ..other.clone() })
}
