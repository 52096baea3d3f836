//! Launches of `space_to_depth.cu`.

use candle::{bail, CudaDevice, DType, Layout, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{kernels, ptx, strided, wide_blocks};

kernels! {
    /// Squares of pixels become pixels.
    SpaceToDepth<T> = "opara_layout_space_to_depth_" {
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

/// Gathers squares of the image `x`, `(batch, channels, h, w)` with the strides of `layout`, into `y`, `(batch, rows,
/// columns, depth)`. The depth is (row, column, channel) within the square, then zeros. Outside the image are zeros.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn space_to_depth<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    squares: &Squares,
    layout: &Layout,
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let ((batch, channels, h, w), &[image, plane, row, column]) = (layout.shape().dims4()?, layout.stride()) else {
        bail!("{layout:?} is not of images")
    };
    let (Squares { side, before: (top, left), to: (rows, columns) }, of_x) = (*squares, [image, plane, row, column]);
    let depth = squares.depth(channels);
    let Some(numel) = squares.elements(batch, channels) else {
        bail!("{squares:?} of {:?}: the kernel indexes with 31 bits", layout.dims())
    };
    if numel == 0 {
        return Ok(());
    }
    let y = y.as_view_mut();
    SpaceToDepth { batch, numel, side, top, left, rows, columns, depth, channels, h, w, of_x, x, y }.launch(
        device,
        &format!("nhwc_{}", dtype.as_str()),
        ptx::SPACE_TO_DEPTH,
        wide_blocks(numel, dtype),
    )
}
