//! Convolutions by the fastest library and algorithm.

use super::epilogue::is_depthwise;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Convolution, Node, Operand, Step};
use crate::trace::{Dim, Function};

/// Lets a convolution of floats be the library's.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let Function::Convolution(window) = *facts.recorded(at)? else { return None };
    let node = facts.node(at);
    let [_, _, h, w] = node.operands.first()?.dims[..] else { return None };
    let compute = Compute::FusedConvolution(Convolution::new(window.square([h.len, w.len])?));
    node.element.is_float().then(|| Replacement { node: Node { compute, ..node.clone() }, saved: 0 })
}

/// Lets `max(x, 0)` that only a convolution of each channel by itself reads be part of it.
pub(super) fn of_relu(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let (Compute::FusedConvolution(of), [image, others @ ..]) = (&node.compute, &node.operands[..]) else {
        return None;
    };
    let relu = facts.only(image)?;
    let x = facts.unary(relu, "relu")?;
    if of.of_relu || !is_depthwise(node, of) || !x.is_run_of(image.len()) || !facts.have_type_of(facts.node(relu), [x])
    {
        return None;
    }
    let compute = Compute::FusedConvolution(Convolution { of_relu: true, ..of.clone() });
    let x = Operand { dims: image.dims.clone(), ..x.clone() };
    let operands = std::iter::once(x).chain(others.iter().cloned()).collect();
    let saved = facts.node(relu).launches;
    Some(Replacement { node: Node { compute, operands, launches: node.launches + saved, ..node.clone() }, saved })
}

/// Lets a convolution of images of one pixel, with a bias, be a product: its weight is read once for all of them.
pub(super) fn of_pixels(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let (Compute::FusedConvolution(of), [x, weight, bias]) = (&node.compute, &node.operands[..]) else { return None };
    let [images, channels, h, w] = x.dims[..] else { return None };
    let has_bias = of.steps == [Step::Add] && !of.residual;
    let is_product = of.window.groups == 1 && of.window.kernel == [1; 2] && (h.len, w.len) == (1, 1);
    let is_padded = of.window.padding != [0; 2] || of.end != [0; 2];
    let out = weight.len().checked_div(channels.len)?;
    if !has_bias || !is_product || is_padded || !weight.is_run_of(out * channels.len) || !facts.is_constant(weight) {
        return None;
    }
    let rows = vec![Dim { len: out, stride: channels.len }, Dim { len: channels.len, stride: 1 }];
    let x = Operand { dims: vec![images, channels], ..x.clone() };
    let operands = vec![x, Operand { dims: rows, ..weight.clone() }, bias.clone()];
    let compute = Compute::Linear { activation: of.activation.clone() };
    Some(Replacement { node: Node { compute, operands, ..node.clone() }, saved: 0 })
}
