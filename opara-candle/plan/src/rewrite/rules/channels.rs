//! Numbers of channels: one for each, the same for all pixels of all images.

use crate::rewrite::graph::{strides_over, Operand};
use crate::trace::{Dim, Window};

/// A view of so many images, of so many channels and pixels, as a vector of one element a channel, if it repeats that.
pub(super) fn by_channel(view: &Operand, [images, channels, pixels]: [u64; 3]) -> Option<Operand> {
    let [0, stride, 0] = strides_over(&view.dims, &[images, channels, pixels])?[..] else { return None };
    Some(Operand { dims: vec![Dim { len: channels, stride }], ..view.clone() })
}

/// The same for the channels of a convolution's result of `len` elements, or of a transposed convolution's.
pub(super) fn of_channels(operands: &[Operand], window: &Window, view: &Operand, len: u64) -> Option<Operand> {
    let [images, channels, ..] = operands[0].dims[..] else { return None };
    let [rows, columns] = window.kernel;
    let out = operands[1].len().checked_div((channels.len / window.groups).checked_mul(rows * columns)?)?;
    let pixels = len.checked_div(images.len * out)?;
    let is_whole = pixels * images.len * out == len && view.len() == len;
    is_whole.then(|| by_channel(view, [images.len, out, pixels]))?
}
