//! Launches of `space_to_depth.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Layout, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{expect, extent, function, ptx, wide_blocks};

/// Squares of pixels that become pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Squares {
    /// Rows and columns of a square.
    pub side: usize,
    /// Rows and columns by which the first one begins before the picture.
    pub before: (usize, usize),
    /// Rows and columns of squares.
    pub to: (usize, usize),
}

impl Squares {
    /// Channels of a pixel that was a square of pixels of so many, filled up to a multiple of 16: cuDNN's fastest kernels on
    /// an H200 take no other.
    pub fn depth(&self, channels: usize) -> usize {
        (channels * self.side * self.side).next_multiple_of(16)
    }

    /// Elements of the squares of such pictures; `None` where they are more than the kernel counts.
    pub fn elements(&self, pictures: usize, channels: usize) -> Option<usize> {
        let elements = pictures * self.to.0 * self.to.1 * self.depth(channels);
        (elements <= i32::MAX as usize).then_some(elements)
    }
}

/// The squares of the picture `x`, `(batch, channels, h, w)` as `layout` places it, into `y` as `(batch, rows, columns,
/// depth)`: the row, the column and the channel within a square, then zeros. Beyond the picture are zeros.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
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
        bail!("{squares:?} of {:?} are more elements than the kernel counts", layout.dims())
    };
    expect("the operand", x.len(), extent(layout.dims().iter().copied().zip(stride.iter().copied())))?;
    expect("the result", y.len(), numel)?;
    if numel == 0 {
        return Ok(());
    }
    let name = format!("opara_space_to_depth_nhwc_{}", dtype.as_str());
    let function = function(device, &name, "space_to_depth", ptx::SPACE_TO_DEPTH)?;
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
    // SAFETY: the arguments are those that the kernel declares. It reads `x` from its first to its last element as the
    // strides place them and writes each of `numel` of `y`: both were held against the slices above, and
    // `Squares::elements` saw that 31 bits count them.
    unsafe { launch.launch(wide_blocks(numel, dtype)) }.w()?;
    Ok(())
}
