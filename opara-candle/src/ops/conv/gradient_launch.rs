//! Launches of `depthwise_gradient.cu`.
#![cfg_attr(not(feature = "cudnn"), allow(dead_code, reason = "gradients of other convolutions are cuDNN's"))]

use crate::cuda::driver::kernels::kernels;
use crate::ops::column_sums::launch::Shares;

kernels! {
    /// The gradient of the images.
    InputGradient<T> = "opara_depthwise_input_gradient_" for [f16 bf16 f32] {
        batch: host, numel: usize, channels: u32, from: u32 [2], to: u32 [2], kernel: u32 [2], stride: u32, dilation: u32,
        before: u32 [2],
        gradient: vector in T [batch * to[0] * to[1] * channels],
        weight: vector in T [kernel[0] * kernel[1] * channels],
        y: out T [numel],
    }

    /// Sums of the gradient of the weight for each share of the pixels of the results.
    WeightGradient<T> = "opara_reduction_depthwise_weight_" for [f16 bf16 f32] {
        batch: u32, channels: u32, share: u32, from: u32 [2], to: u32 [2], stride: u32, dilation: u32, before: u32 [2],
        taps: host, shares: grid [1],
        gradient: in T [batch * to[0] * to[1] * channels],
        x: in T [batch * from[0] * from[1] * channels],
        sums: out f32 [shares * channels * taps],
    }
}

/// Sides of the windows whose weights have a kernel for their gradient.
pub(super) const SIDES: [usize; 3] = [3, 5, 7];

/// Shares of so many pixels, for blocks of 32 channels: enough blocks to fill a GPU.
pub(super) fn shares(pixels: usize, channels: usize) -> Shares {
    const BLOCKS: usize = 264;
    const LEAST: usize = 128;
    let count = BLOCKS.div_ceil(channels.div_ceil(32)).min(pixels.div_ceil(LEAST)).max(1);
    let rows = pixels.div_ceil(count);
    Shares { rows, count: pixels.div_ceil(rows) }
}
