//! Padding before a pool, which candle copies together with the image.

use super::padding::{unpadded, Unpadded};
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node};
use crate::trace::{Function, Window};

/// Folds padding of minus infinity into a max pool, and padding of zeros into a mean pool, which counts every element of a window.
///
/// Minus infinity or the smallest finite number is never a maximum beside an element of the image: a window has one, since the
/// padding is narrower than it. With the smallest finite number only images of minus infinity would tell.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let (window, is_max) = match *facts.recorded(at)? {
        Function::MaxPool(window) => (window, true),
        Function::MeanPool(window) => (window, false),
        _ => return None,
    };
    let [x] = &node.operands[..] else { return None };
    let lowest = node.element.number(node.element.lowest()?)?;
    let Unpadded { inner, before, after, saved } =
        unpadded(facts, x, |number| if is_max { number <= lowest } else { number == 0. })?;
    // The library's pools have square windows.
    let [kernel, other] = window.kernel;
    let is_square = kernel == other && window.stride[0] == window.stride[1];
    let is_plain = window.padding == [0; 2] && window.dilation == [1; 2];
    let is_narrow = before.iter().chain(&after).all(|&lines| lines < kernel);
    if !is_square || !is_plain || !is_narrow || !facts.have_type_of(node, [&inner]) {
        return None;
    }
    let compute = Compute::Pool { window: Window { padding: before, ..window }, end: after, is_max };
    let (operands, launches) = (vec![inner], node.launches + saved);
    Some(Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved })
}
