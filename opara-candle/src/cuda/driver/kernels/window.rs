//! Launches of `window.cu`: pools and depthwise convolutions.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::{address, blocks, expect, function};
use crate::cuda::ops::ptx;
use crate::ops::{Activation, ConvConfig, PoolConfig, PoolKind};

/// Sizes of an operator that maps the pixels of each channel to others.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Plane {
    /// Images.
    batch: usize,
    /// Channels.
    channels: usize,
    /// Height and width before.
    from: (usize, usize),
    /// Height and width after.
    to: (usize, usize),
    /// Whether the channels of a pixel lie together.
    channels_last: bool,
}

impl Plane {
    /// For `(batch, channels, h, w)` to `to`.
    ///
    /// # Errors
    /// More elements than 32 bits count.
    pub fn new(
        (batch, channels, h, w): (usize, usize, usize, usize),
        to: (usize, usize),
        channels_last: bool,
    ) -> Result<Self> {
        let plane = Self { batch, channels, from: (h, w), to, channels_last };
        if plane.elements().max(plane.results()) > i32::MAX as usize {
            bail!("{:?} has more elements than the kernels count", (batch, channels, h, w))
        }
        Ok(plane)
    }

    /// Elements of the operand.
    fn elements(&self) -> usize {
        self.batch * self.channels * self.from.0 * self.from.1
    }

    /// Elements of the result.
    pub fn results(&self) -> usize {
        self.batch * self.channels * self.to.0 * self.to.1
    }

    /// Shape of the result as it lies in memory.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        match self.channels_last {
            true => (self.batch, self.to.0, self.to.1, self.channels),
            false => (self.batch, self.channels, self.to.0, self.to.1),
        }
    }

    /// The kernel's variant, and how many neighbouring channels of so many bytes each its threads take: as many as 16
    /// bytes hold and channels and addresses allow, as long as that leaves enough threads to hide the latency of loads.
    fn variant(&self, bytes: usize, addresses: &[CUdeviceptr]) -> (&'static str, usize) {
        /// As many as an H200 runs at once.
        const THREADS: usize = 132 * 2048;
        if !self.channels_last {
            return ("nchw", 1);
        }
        let fits = |n: &usize| {
            let size = n * bytes;
            let aligned =
                self.channels.is_multiple_of(*n) && addresses.iter().all(|address| address % size as u64 == 0);
            aligned && size <= 16 && (size <= 4 || self.results() / n >= THREADS)
        };
        match [8, 4, 2].into_iter().find(fits) {
            Some(8) => ("nhwc8", 8),
            Some(4) => ("nhwc4", 4),
            Some(_) => ("nhwc2", 2),
            None => ("nhwc", 1),
        }
    }
}

/// A pool of `x` into `y`, both laid out as `plane` says.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn pool<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    kind: PoolKind,
    config: &PoolConfig,
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), plane.elements())?;
    expect("the result", y.len(), plane.results())?;
    if plane.results() == 0 {
        return Ok(());
    }
    let (variant, together) = plane.variant(dtype.size_in_bytes(), &[address(x, device)]);
    let name = format!("opara_pool_{variant}_{}", dtype.as_str());
    let function = function(device, &name, "window", ptx::WINDOW)?;
    let numel = plane.results();
    let p = config.padding;
    let sizes = [plane.channels, plane.from.0, plane.from.1, plane.to.0, plane.to.1, config.kernel, config.stride];
    let edges = [p.top, p.left, p.bottom, p.right, usize::from(config.count_padding)];
    let integers = sizes.into_iter().chain(edges).map(|n| n as i32).collect::<Vec<_>>();
    let kind = match kind {
        PoolKind::Max => 0i32,
        PoolKind::Mean => 1,
    };
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&kind);
    for n in &integers {
        launch.arg(n);
    }
    launch.arg(x).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads within `elements()` of `x` and writes each of
    // `results()` of `y`: both were held against the slices above, and 32 bits count them.
    unsafe { launch.launch(blocks(numel / together)) }.w()?;
    Ok(())
}

/// A convolution of each channel of `x` by itself into `y`, both laid out as `plane` says; so are the `kernel.0 *
/// kernel.1` weights of each channel.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(in crate::cuda) fn depthwise<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    kernel: (usize, usize),
    config: &ConvConfig,
    x: &CudaView<T>,
    weight: &CudaView<T>,
    bias: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), plane.elements())?;
    expect("the weight", weight.len(), plane.channels * kernel.0 * kernel.1)?;
    expect("the bias", bias.len(), plane.channels)?;
    expect("the result", y.len(), plane.results())?;
    if plane.results() == 0 {
        return Ok(());
    }
    let addresses = [x, weight, bias].map(|operand| address(operand, device));
    let (variant, together) = plane.variant(dtype.size_in_bytes(), &addresses);
    let name = format!("opara_depthwise_{variant}_{}", dtype.as_str());
    let function = function(device, &name, "window", ptx::WINDOW)?;
    let numel = plane.results();
    let p = config.padding;
    let sizes = [plane.channels, plane.from.0, plane.from.1, plane.to.0, plane.to.1, kernel.0, kernel.1];
    let relu = usize::from(config.activation == Activation::Relu);
    let rest = [config.stride, config.dilation, p.top, p.left, relu];
    let integers = sizes.into_iter().chain(rest).map(|n| n as i32).collect::<Vec<_>>();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for n in &integers {
        launch.arg(n);
    }
    launch.arg(x).arg(weight).arg(bias).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads within `elements()` of `x`, one weight for each
    // channel and place, one bias for each channel, and writes each of `results()` of `y`: all were held against the
    // slices above.
    unsafe { launch.launch(blocks(numel / together)) }.w()?;
    Ok(())
}
