//! Launches of `space_to_depth.cu`.

use crate::cuda::driver::kernels::{kernels, strided};

kernels! {
    /// Squares of pixels become pixels.
    SpaceToDepth<T> = "opara_layout_space_to_depth_" for [f16 bf16 f32] {
        batch: host, numel: usize, side: u32, top: u32, left: u32, rows: u32, columns: u32, depth: u32, channels: u32, h: u32,
        w: u32, of_x: usize [4],
        x: in T [strided([batch, channels, h, w], of_x, 1)],
        y: out T [numel],
    }
}

/// The squares of pixels that become pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Squares {
    /// Rows and columns of a square, in pixels.
    pub side: usize,
    /// Rows above, and columns left of the image, at which the first square begins.
    pub before: (usize, usize),
    /// Rows and columns of squares in the result.
    pub to: (usize, usize),
}

impl Squares {
    /// Channels of the result: all channels of a square, padded to a multiple of 16, since cuDNN's fastest kernels on
    /// an H200 need that.
    pub fn depth(&self, channels: usize) -> usize {
        (channels * self.side * self.side).next_multiple_of(16)
    }

    /// Elements of the result for `images` images; `None` if an index exceeds 31 bits.
    pub fn elements(&self, images: usize, channels: usize) -> Option<usize> {
        let elements = images * self.to.0 * self.to.1 * self.depth(channels);
        (elements <= i32::MAX as usize).then_some(elements)
    }
}
