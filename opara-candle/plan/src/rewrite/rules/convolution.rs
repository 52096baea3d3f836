//! Convolutions by the fastest library and algorithm.

use super::{Better, Facts};
use crate::rewrite::graph::{Compute, Node};
use crate::trace::Function;

/// Lets a convolution of floats be the library's.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Better> {
    let Function::Convolution(window) = *facts.recorded(at)? else { return None };
    let node = facts.node(at);
    let is_square = window.stride[0] == window.stride[1] && window.dilation[0] == window.dilation[1];
    let compute = Compute::FusedConvolution { window, steps: Vec::new(), residual: false, relu: false };
    (is_square && node.element.is_float()).then(|| Better { node: Node { compute, ..node.clone() }, saved: 0 })
}
