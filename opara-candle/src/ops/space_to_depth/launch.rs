//! Launches of `space_to_depth.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Layout, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{expect, extent, function, ptx, wide_blocks};

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
    let ((batch, channels, h, w), stride) = (layout.shape().dims4()?, layout.stride());
    let (rows, columns) = squares.to;
    let depth = squares.depth(channels);
    let Some(numel) = squares.elements(batch, channels) else {
        bail!("{squares:?} of {:?}: the kernel indexes with 31 bits", layout.dims())
    };
    expect("the operand", x.len(), extent(layout.dims().iter().copied().zip(stride.iter().copied())))?;
    expect("the result", y.len(), numel)?;
    if numel == 0 {
        return Ok(());
    }
    let name = format!("opara_space_to_depth_nhwc_{}", dtype.as_str());
    let function = function(device, &name, ptx::SPACE_TO_DEPTH)?;
    let (top, left) = squares.before;
    let sizes = [squares.side, top, left, rows, columns, depth, channels, h, w].map(|n| n as i32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for n in &sizes {
        launch.arg(n);
    }
    for n in stride {
        launch.arg(n);
    }
    launch.arg(x).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `x` within the extent of its strides, and writes
    // `numel` elements of `y`. Both lengths were checked above, and `Squares::elements` checked that indices fit into
    // 31 bits.
    unsafe { launch.launch(wide_blocks(numel, dtype)) }.w()?;
    Ok(())
}
