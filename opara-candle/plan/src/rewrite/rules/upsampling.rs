//! Nearest upsampling, for which candle's kernel writes planes whatever it reads.

use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node};
use crate::trace::Function;

/// Lets images keep the layout of the convolutions around.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let Function::UpsampleNearest([rows, columns]) = *facts.recorded(at)? else { return None };
    let [x] = &node.operands[..] else { return None };
    let [images, channels, _, _] = x.dims[..] else { return None };
    let len = images.len.checked_mul(channels.len)?.checked_mul(rows)?.checked_mul(columns)?;
    let fits = node.element.is_float() && facts.have_type_of(node, [x]) && node.len == len;
    let compute = Compute::UpsampleNearest([rows, columns]);
    fits.then(|| Replacement { node: Node { compute, ..node.clone() }, saved: 0 })
}
