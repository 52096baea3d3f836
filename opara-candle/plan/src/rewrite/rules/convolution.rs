//! Convolutions by the fastest library and algorithm.

use super::super::graph::{Compute, Graph};
use super::Applied;
use crate::trace::{Element, Function};

/// Lets convolutions of floats be the library's.
pub(super) fn apply(graph: &mut Graph) -> Applied {
    let mut applied = Applied::default();
    let live = graph.live();
    for (node, _) in graph.nodes.iter_mut().zip(live).filter(|(_, is_live)| *is_live) {
        let Compute::Recorded(Function::Convolution(window)) = node.compute else { continue };
        let is_square = window.stride[0] == window.stride[1] && window.dilation[0] == window.dilation[1];
        if is_square && node.element != Element::Byte {
            node.compute = Compute::FusedConvolution { window, steps: Vec::new(), relu: false };
            applied.times += 1;
        }
    }
    applied
}
