//! Copies of a number around an image, which candle copies together with it before it convolves or pools them.

use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand};
use crate::trace::Dim;

/// Lets the zeros that a convolution's operand was put between be the convolution's padding.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let Compute::FusedConvolution(of) = &node.compute else { return None };
    let (x, others) = node.operands.split_first()?;
    let image = unpadded(facts, x, |number| number == 0.)?;
    let mut of = of.clone();
    for axis in [0, 1] {
        of.window.padding[axis] += image.before[axis];
        of.end[axis] += image.after[axis];
    }
    let operands = std::iter::once(image.inner).chain(others.iter().cloned()).collect();
    let compute = Compute::FusedConvolution(of);
    let (saved, launches) = (image.saved, node.launches + image.saved);
    Some(Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved })
}

/// Images, `(images, channels, h, w)`, that were put between copies of a number. Pairs are rows and columns.
pub(super) struct Unpadded {
    pub inner: Operand,
    /// Rows above, and columns to the left.
    pub before: [u64; 2],
    /// Rows below, and columns to the right.
    pub after: [u64; 2],
    /// The launches that copied them together, of those that nothing else reads.
    pub saved: usize,
}

/// The images without their padding of numbers like these.
pub(super) fn unpadded(facts: &Facts, x: &Operand, is_padding: impl Fn(f64) -> bool) -> Option<Unpadded> {
    let mut image = Unpadded { inner: x.clone(), before: [0; 2], after: [0; 2], saved: 0 };
    // The nodes in between go if nothing else reads them.
    let mut goes = true;
    while let Some(Step { inner, concat, axis, before, after }) = step(facts, &image.inner, &is_padding) {
        goes &= facts.users[concat].len() == 1;
        image.saved += if goes { facts.node(concat).launches } else { 0 };
        image.before[axis] += before;
        image.after[axis] += after;
        image.inner = inner;
    }
    (image.before != [0; 2] || image.after != [0; 2]).then_some(image)
}

/// Images between numbers along one dimension.
struct Step {
    inner: Operand,
    /// The node that they are with the numbers.
    concat: usize,
    /// Side of the padding: 0 above and below, 1 left and right.
    axis: usize,
    /// Rows or columns of them.
    before: u64,
    after: u64,
}

fn step(facts: &Facts, x: &Operand, is_padding: &impl Fn(f64) -> bool) -> Option<Step> {
    let [images, channels, h, w] = x.dims[..] else { return None };
    let concat = facts.whole(x)?;
    let node = facts.node(concat);
    let Compute::Concat { rows, widths } = &node.compute else { return None };
    let is_around = |part: &Operand| facts.fill(part).is_some_and(is_padding);
    let at = node.operands.iter().position(|part| !is_around(part))?;
    let planes = images.len * channels.len;
    // A row of the concatenation is one of an image, or a whole plane.
    let (axis, step) = match *rows {
        rows if rows == planes * h.len => (1, 1),
        rows if rows == planes => (0, w.len),
        _ => return None,
    };
    let lines = |widths: &[u64]| {
        let elements: u64 = widths.iter().sum();
        elements.is_multiple_of(step).then(|| elements / step)
    };
    let (before, after) = (lines(&widths[..at])?, lines(&widths[at + 1..])?);
    let inner = &node.operands[at];
    let others = [&node.operands[..at], &node.operands[at + 1..]].concat();
    let is_image = inner.is_run_of(rows * widths[at]) && facts.have_type_of(node, [inner]);
    if !is_image || others.is_empty() || !others.iter().all(is_around) || widths[at] == 0 {
        return None;
    }
    let mut lens = [images.len, channels.len, h.len, w.len];
    lens[2 + axis] -= before + after;
    let strides = [lens[1] * lens[2] * lens[3], lens[2] * lens[3], lens[3], 1];
    let dims = lens.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
    Some(Step { inner: Operand { dims, ..inner.clone() }, concat, axis, before, after })
}
