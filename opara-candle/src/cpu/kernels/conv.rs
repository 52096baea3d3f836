//! Convolution.

use super::Element;
use crate::ops::{Activation, ConvConfig};

/// A convolution with its shapes, which agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conv {
    pub config: ConvConfig,
    pub batch: usize,
    /// Channels of input and output.
    pub channels: (usize, usize),
    /// Height and width of input, window and output.
    pub input: (usize, usize),
    pub window: (usize, usize),
    pub output: (usize, usize),
}

/// The result for contiguous operands.
pub(crate) fn conv2d<T: Element>(conv: &Conv, x: &[T], weight: &[T], bias: Option<&[T]>) -> Vec<T> {
    let Conv { config, batch, channels: (channels, out), input: (h, w), window: (kh, kw), output: (oh, ow) } = *conv;
    let (k, outs) = (channels / config.groups, out / config.groups);
    let at = |index: usize, tap: usize, before: usize, size: usize| {
        (index * config.stride + tap * config.dilation).checked_sub(before).filter(|&i| i < size)
    };
    let mut y = Vec::with_capacity(batch * out * oh * ow);
    for i in 0..batch * out * oh * ow {
        let (item, o, row, column) = (i / (out * oh * ow), i / (oh * ow) % out, i / ow % oh, i % ow);
        let mut sum = bias.map_or(T::zero().widen(), |bias| bias[o].widen());
        for tap in 0..k * kh * kw {
            let (c, r, s) = (tap / (kh * kw), tap / kw % kh, tap % kw);
            let from = at(row, r, config.padding.top, h).zip(at(column, s, config.padding.left, w));
            if let Some((row, column)) = from {
                let c = o / outs * k + c;
                let x = x[((item * channels + c) * h + row) * w + column];
                sum += x.widen() * weight[o * k * kh * kw + tap].widen();
            }
        }
        y.push(T::narrow(match config.activation {
            Activation::Relu if sum < T::zero().widen() => T::zero().widen(),
            _ => sum,
        }));
    }
    y
}
