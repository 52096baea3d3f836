//! Transposed convolutions, for which candle's kernels compute each element of the result by itself.

use super::epilogue::of_channels;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::Function;

/// Lets a transposed convolution be an ordinary one, and what is added to each channel of it part of that.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    ordinary(facts, at).or_else(|| with_bias(facts, at))
}

/// Elements of the result that are a stride apart are a convolution of `x` with those of the weight that are a stride apart. All
/// these convolutions together are one, with more channels.
fn ordinary(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let Function::TransposedConvolution { window, output_padding } = *facts.recorded(at)? else { return None };
    let [x, weight] = &node.operands[..] else { return None };
    let ([images, channels, h, w], [inner, out, rows, columns]) = (lens(x)?, lens(weight)?);
    let [oh, ow] = window.transposed([h, w], output_padding)?;
    let is_dense = window.groups == 1 && inner == channels && !is_of_a_group(facts, at);
    // With more padding than that, parts of `x` would not matter.
    let is_padded = (0..2).all(|axis| window.padding[axis] < window.kernel[axis]);
    let is_sound = window.kernel == [rows, columns] && node.len == images * out * oh * ow;
    // The weight is arranged anew, which has to be done once.
    let is_weight = facts.is_constant(weight) && facts.have_type_of(node, [x, weight]) && node.element.is_float();
    let fits = is_dense && is_padded && is_sound && is_weight && window.dilation == [1; 2];
    let compute = Compute::TransposedConvolution { window, output_padding };
    fits.then(|| Replacement { node: Node { compute, ..node.clone() }, saved: 0 })
}

/// Whether it is one of several of one operand whose results lie beside each other: one a group. There may be one for each channel,
/// and each would have a weight to arrange, and a result.
fn is_of_a_group(facts: &Facts, at: usize) -> bool {
    let is_transposed = |operand: &Operand| {
        let Value::Node(of) = operand.value else { return false };
        matches!(facts.recorded(of), Some(Function::TransposedConvolution { .. }))
    };
    let nodes = &facts.graph.nodes;
    let users = facts.users[at].iter().filter_map(|&user| nodes.get(user));
    let mut concats = users.filter(|user| matches!(user.compute, Compute::Concat { .. }));
    concats.any(|concat| concat.operands.len() > 1 && concat.operands.iter().all(is_transposed))
}

/// A sum of a transposed convolution and a constant with one number a channel.
fn with_bias(facts: &Facts, at: usize) -> Option<Replacement> {
    let [a, b] = facts.binary(at, "add")?;
    let node = facts.node(at);
    let sum = |[y, other]: [&Operand; 2]| {
        let before = facts.node(facts.only(y)?);
        let Compute::TransposedConvolution { window, .. } = &before.compute else { return None };
        let fits = before.operands.len() == 2 && before.len == node.len && before.element == node.element;
        let vector = of_channels(facts, &before.operands, window.groups, window.kernel, other, before.len)?;
        let operands = before.operands.iter().cloned().chain([vector]).collect();
        let launches = before.launches + node.launches;
        let node = Node { compute: before.compute.clone(), operands, launches, ..node.clone() };
        (fits && facts.is_constant(other)).then_some(Replacement { node, saved: 1 })
    };
    sum([a, b]).or_else(|| sum([b, a]))
}

/// The lengths of four dimensions.
fn lens(operand: &Operand) -> Option<[u64; 4]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
