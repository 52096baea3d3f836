//! Zeros around an image, which candle copies together with it before it convolves them.

use super::{Better, Facts};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// Lets the zeros that a convolution's operand was put between be the convolution's padding.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Better> {
    let node = facts.node(at);
    let Compute::FusedConvolution(of) = &node.compute else { return None };
    let (x, others) = node.operands.split_first()?;
    let (mut image, mut of) = (unpadded(facts, x)?, of.clone());
    let mut saved = 0;
    // The nodes in between go if nothing else reads them.
    let mut goes = true;
    loop {
        goes &= facts.users[image.concat].len() == 1;
        saved += if goes { facts.node(image.concat).launches } else { 0 };
        of.window.padding[image.axis] += image.before;
        of.end[image.axis] += image.after;
        match unpadded(facts, &image.inner) {
            Some(next) => image = next,
            None => break,
        }
    }
    let operands = std::iter::once(image.inner).chain(others.iter().cloned()).collect();
    let compute = Compute::FusedConvolution(of);
    let launches = node.launches + saved;
    Some(Better { node: Node { compute, operands, launches, ..node.clone() }, saved })
}

/// Images, `(images, channels, h, w)`, between zeros.
struct Padded {
    inner: Operand,
    /// The node that they are with the zeros.
    concat: usize,
    /// Where the zeros are: 0 above and below, 1 to the left and to the right.
    axis: usize,
    /// Rows or columns of zeros.
    before: u64,
    after: u64,
}

/// What an operand of a convolution was before zeros were put around it.
fn unpadded(facts: &Facts, x: &Operand) -> Option<Padded> {
    let [images, channels, h, w] = x.dims[..] else { return None };
    let concat = facts.whole(x)?;
    let node = facts.node(concat);
    let Compute::Concat { rows, widths } = &node.compute else { return None };
    let at = node.operands.iter().position(|part| !are_zeros(facts, part))?;
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
    if !is_image || !others.iter().all(|part| are_zeros(facts, part)) || widths[at] == 0 {
        return None;
    }
    let mut lens = [images.len, channels.len, h.len, w.len];
    lens[2 + axis] -= before + after;
    let strides = [lens[1] * lens[2] * lens[3], lens[2] * lens[3], lens[3], 1];
    let dims = lens.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
    Some(Padded { inner: Operand { dims, ..inner.clone() }, concat, axis, before, after })
}

fn are_zeros(facts: &Facts, part: &Operand) -> bool {
    matches!(part.value, Value::Node(of) if facts.recorded(of) == Some(&Function::Zeros))
}
