//! Convolution: which kernel, and what follows the sums.

use super::depthwise::depthwise;
use super::element::Element;
use super::product::{Group, Product};
use super::taps::Windows;
use super::{each, WORTH_A_THREAD};
use crate::ops::{Activation, ConvConfig};

/// Output channels of one input channel from which a matrix product is the better way.
const MANY: usize = 4;

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

impl Conv {
    pub(super) fn windows(&self) -> Windows {
        let ConvConfig { stride, dilation, padding, .. } = self.config;
        let (input, window, output) = (self.input, self.window, self.output);
        Windows { input, window, output, stride, dilation, before: (padding.top, padding.left) }
    }

    /// Whether a window is one element and they are all of the plane.
    pub(super) fn is_pointwise(&self) -> bool {
        self.window == (1, 1) && self.config.stride == 1 && self.input == self.output
    }
}

/// The result for contiguous operands.
pub(crate) fn conv2d<T: Element>(conv: &Conv, x: &[T], weight: &[T], bias: Option<&[T]>) -> Vec<T> {
    let groups = conv.config.groups;
    let (channels, outs) = (conv.channels.0 / groups, conv.channels.1 / groups);
    let (k, n) = (channels * conv.window.0 * conv.window.1, conv.output.0 * conv.output.1);
    let mut y = vec![T::zero(); conv.batch * conv.channels.1 * n];
    if y.is_empty() {
        return y;
    }
    if channels == 1 && outs < MANY {
        depthwise(conv, x, weight, bias, &mut y);
        return y;
    }
    let product = Product::new(conv);
    let work = 2 * outs * k * n;
    let xs = x.chunks_exact(channels * conv.input.0 * conv.input.1);
    let tasks: Vec<_> = xs.zip(y.chunks_exact_mut(outs * n)).enumerate().collect();
    // Either the products have threads, or what one is made of.
    let many = tasks.len() >= 4 * rayon::current_num_threads() || work < WORTH_A_THREAD;
    let worth = tasks.len() * work > WORTH_A_THREAD;
    let run = || {
        each(many && worth, tasks, |(i, (x, y))| {
            let first = i % groups * outs;
            let (weight, bias) = (&weight[first * k..][..outs * k], bias.map(|bias| &bias[first..][..outs]));
            product.run(Group { x, weight, bias }, !many, y)
        })
    };
    match worth {
        // Once to the pool, not at each of the steps.
        true => rayon::scope(|_| run()),
        false => run(),
    }
    y
}

/// Adds the bias of `channel`, applies the activation and writes the result.
#[inline(always)]
pub(super) fn finish<T: Element>(conv: &Conv, bias: Option<&[T]>, channel: usize, sums: &mut [T::Sum], y: &mut [T]) {
    if let Some(bias) = bias {
        let mut by = [T::Sum::default()];
        T::widen(&bias[channel..=channel], &mut by);
        for sum in sums.iter_mut() {
            *sum += by[0];
        }
    }
    if conv.config.activation == Activation::Relu {
        let zero = T::Sum::default();
        for sum in sums.iter_mut() {
            *sum = if *sum < zero { zero } else { *sum };
        }
    }
    T::narrow(sums, y);
}
