//! Transposed convolutions, for which candle's kernels compute each element of the result by itself.

use super::channels::of_channels;
use super::facts::Facts;
use super::found::Found;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand, Value};
use crate::trace::Function;

/// Elements of the result that are a stride apart are a convolution of `x` with those of the weight that are a stride apart. All
/// these convolutions together are one, with more channels.
pub(super) fn make_ordinary(found: &Found) -> Option<Node> {
    let (facts, at, node) = (found.facts, found.at, found.root());
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
    fits.then(|| found.replace_by(compute, node.operands.clone()))
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

/// Lets what is added to each channel of such a convolution be part of it.
pub(super) fn take_bias(found: &Found) -> Option<Node> {
    let before = found.node("y").filter(|before| before.operands.len() == 2)?;
    let Compute::TransposedConvolution { window, .. } = &before.compute else { return None };
    let c = found.operand("c").filter(|c| found.facts.is_constant(c))?;
    let vector = of_channels(&before.operands, window, c, before.len)?;
    Some(found.replace_by(before.compute.clone(), [&before.operands[..], &[vector]].concat()))
}

/// The lengths of four dimensions.
fn lens(operand: &Operand) -> Option<[u64; 4]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
