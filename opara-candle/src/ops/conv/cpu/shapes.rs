//! The shapes of a convolution, and its epilogue.

use crate::cpu::kernels::{Element, Windows};
use crate::ops::{Activation, ConvConfig};

/// A convolution with checked shapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conv {
    pub config: ConvConfig,
    pub batch: usize,
    /// Input and output channels.
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

    /// Is it a 1 x 1 convolution over every pixel? Then the input is the im2col matrix.
    pub(super) fn is_pointwise(&self) -> bool {
        self.window == (1, 1) && self.config.stride == 1 && self.input == self.output
    }
}

/// The epilogue: adds the bias of `channel`, applies the activation, and stores the result.
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
