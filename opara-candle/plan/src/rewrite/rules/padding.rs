//! Copies of a number around an image, or of its edges, which candle copies together with it before it convolves or pools them.

use super::facts::Facts;
use super::found::Found;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand};
use crate::trace::{Dim, Function, Window};

/// Lets the zeros that a convolution's operand was put between be the convolution's padding.
pub(super) fn take_padding(found: &Found) -> Option<Node> {
    let node = found.root();
    let Compute::FusedConvolution(of) = &node.compute else { return None };
    let (x, others) = node.operands.split_first()?;
    let Unpadded { inner, before, after } =
        unpadded(found.facts, x, &Padding { is_number: |number| number == 0., has_edges: false })?;
    let mut of = of.clone();
    for axis in [0, 1] {
        of.window.padding[axis] += before[axis];
        of.end[axis] += after[axis];
    }
    Some(found.replace_by(Compute::FusedConvolution(of), [&[inner], others].concat()))
}

/// Folds padding of minus infinity, or of copies of the edges, into a max pool, and padding of zeros into a mean pool, which counts every
/// element of a window.
///
/// Minus infinity or the smallest finite number is never a maximum beside an element of the image: a window has one, since the
/// padding is narrower than it. With the smallest finite number only images of minus infinity would tell. A window that has copies of
/// an edge has that edge, too, and so the same maximum without them.
pub(super) fn pad_pool(found: &Found) -> Option<Node> {
    let node = found.root();
    let (window, is_max) = match *found.facts.recorded(found.at)? {
        Function::MaxPool(window) => (window, true),
        Function::MeanPool(window) => (window, false),
        _ => return None,
    };
    let [x] = &node.operands[..] else { return None };
    let lowest = node.element.number(node.element.lowest()?)?;
    let is_padding = |number| if is_max { number <= lowest } else { number == 0. };
    let padding = Padding { is_number: is_padding, has_edges: is_max };
    let Unpadded { inner, before, after } = unpadded(found.facts, x, &padding)?;
    // The library's pools have square windows.
    let [kernel, other] = window.kernel;
    let is_square = kernel == other && window.stride[0] == window.stride[1];
    let is_plain = window.padding == [0; 2] && window.dilation == [1; 2];
    let is_narrow = before.iter().chain(&after).all(|&lines| lines < kernel);
    if !is_square || !is_plain || !is_narrow || !found.facts.have_type_of(node, [&inner]) {
        return None;
    }
    let compute = Compute::Pool { window: Window { padding: before, ..window }, end: after, is_max };
    Some(found.replace_by(compute, vec![inner]))
}

/// Images, `(images, channels, h, w)`, that were put between copies of a number. Pairs are rows and columns.
struct Unpadded {
    inner: Operand,
    /// Rows above, and columns to the left.
    before: [u64; 2],
    /// Rows below, and columns to the right.
    after: [u64; 2],
}

/// What lies around images.
struct Padding<F> {
    /// Copies of a number like this.
    is_number: F,
    /// Or of the row or column beside it?
    has_edges: bool,
}

/// The images without such padding.
fn unpadded(facts: &Facts, x: &Operand, padding: &Padding<impl Fn(f64) -> bool>) -> Option<Unpadded> {
    let mut image = Unpadded { inner: x.clone(), before: [0; 2], after: [0; 2] };
    while let Some(Step { inner, axis, before, after }) = step(facts, &image.inner, padding) {
        image.before[axis] += before;
        image.after[axis] += after;
        image.inner = inner;
    }
    (image.before != [0; 2] || image.after != [0; 2]).then_some(image)
}

/// Images between padding along one dimension.
struct Step {
    inner: Operand,
    /// Side of the padding: 0 above and below, 1 left and right.
    axis: usize,
    /// Rows or columns of it.
    before: u64,
    after: u64,
}

fn step(facts: &Facts, x: &Operand, padding: &Padding<impl Fn(f64) -> bool>) -> Option<Step> {
    let [images, channels, h, w] = x.dims[..] else { return None };
    let node = facts.node(facts.whole(x)?);
    let Compute::Concat { rows, widths } = &node.compute else { return None };
    let planes = images.len * channels.len;
    // A row of the concatenation is one of an image, or a whole plane.
    let (axis, step) = match *rows {
        rows if rows == planes * h.len => (1, 1),
        rows if rows == planes => (0, w.len),
        _ => return None,
    };
    let is_number = |part: &Operand| facts.fill(part).is_some_and(&padding.is_number);
    let parts = node.operands.iter().enumerate();
    let (at, inner) = parts.filter(|(_, part)| !is_number(part)).max_by_key(|(at, _)| widths[*at])?;
    let is_edge = |(other, part): (usize, &Operand)| {
        let line = if other < at { 0 } else { widths[at].checked_sub(step)? };
        let dims = vec![Dim { len: *rows, stride: widths[at] }, Dim { len: step, stride: 1 }];
        let edge = Operand { value: inner.value, first: inner.first + line, dims };
        Some(padding.has_edges && widths[other] == step && without_ones(part) == without_ones(&edge))
    };
    let lines = |widths: &[u64]| {
        let elements: u64 = widths.iter().sum();
        elements.is_multiple_of(step).then(|| elements / step)
    };
    let (before, after) = (lines(&widths[..at])?, lines(&widths[at + 1..])?);
    let is_image = inner.is_run_of(rows * widths[at]) && facts.have_type_of(node, [inner]);
    let mut others = node.operands.iter().enumerate().filter(|(other, _)| *other != at);
    let are_around = others.all(|(other, part)| is_number(part) || is_edge((other, part)) == Some(true));
    if !is_image || !are_around || before + after == 0 || widths[at] == 0 {
        return None;
    }
    let mut lens = [images.len, channels.len, h.len, w.len];
    lens[2 + axis] -= before + after;
    let strides = [lens[1] * lens[2] * lens[3], lens[2] * lens[3], lens[3], 1];
    let dims = lens.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
    Some(Step { inner: Operand { dims, ..inner.clone() }, axis, before, after })
}

/// The same elements, without dimensions of one.
fn without_ones(of: &Operand) -> Operand {
    Operand { dims: of.dims.iter().filter(|dim| dim.len != 1).copied().collect(), ..of.clone() }
}
