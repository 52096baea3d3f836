//! Grouped convolutions, which candle runs as one convolution a group.

use super::found::Found;
use crate::rewrite::compute::{Compute, Convolution};
use crate::rewrite::graph::{Node, Operand, Value};
use crate::trace::{Dim, Function, Window};

/// Rejoins convolutions of consecutive channels with consecutive parts of a weight, whose results lie one after the other.
pub(super) fn join_groups(found: &Found) -> Option<Node> {
    let (facts, concat) = (found.facts, found.root());
    let Compute::Concat { rows, .. } = concat.compute else { return None };
    let groups = concat.operands.len() as u64;
    let part = |operand: &Operand| {
        let Value::Node(of) = operand.value else { return None };
        let Function::Convolution(window) = *facts.recorded(of)? else { return None };
        facts.only(operand).map(|of| (facts.node(of), window))
    };
    let parts = concat.operands.iter().map(part).collect::<Option<Vec<_>>>()?;
    let (first, window) = *parts.first().filter(|_| groups > 1)?;
    let (x, weight) = (&first.operands[0], &first.operands[1]);
    let [images, channels, h, w] = x.dims[..] else { return None };
    let square = window.square([h.len, w.len])?;
    // Each convolution fills a run of each image.
    if window.groups != 1 || images.len != rows {
        return None;
    }
    let weights = weight.len();
    let follows = |(group, (node, other)): (usize, &(&Node, Window))| {
        let (group, x_at, weight_at) = (group as u64, &node.operands[0], &node.operands[1]);
        *other == window
            && node.len == first.len
            && x_at.value == x.value
            && x_at.dims == x.dims
            && x_at.first == x.first + group * channels.len * channels.stride
            && weight_at.value == weight.value
            && weight_at.is_run_of(weights)
            && weight_at.first == weight.first + group * weights
    };
    if !parts.iter().enumerate().all(follows) {
        return None;
    }
    let all = Dim { len: channels.len * groups, stride: channels.stride };
    let x = Operand { dims: vec![images, all, h, w], ..x.clone() };
    let weight = Operand { dims: vec![Dim { len: weights * groups, stride: 1 }], ..weight.clone() };
    let compute = Compute::FusedConvolution(Convolution::new(Window { groups, ..square }));
    Some(found.replace_by(compute, vec![x, weight]))
}
