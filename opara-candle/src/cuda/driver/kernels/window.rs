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

    /// Whether a thread can take so many neighbouring channels at once, of so many bytes each.
    fn is_aligned(&self, channels: usize, bytes: usize, addresses: &[CUdeviceptr]) -> bool {
        let size = channels * bytes;
        let aligned = addresses.iter().all(|address| address.is_multiple_of(size as u64));
        size <= 16 && self.channels.is_multiple_of(channels) && aligned
    }

    /// Whether threads that make so many results each are enough to hide the latency of loads: as many as an H200 runs at
    /// once.
    fn fills(&self, results: usize) -> bool {
        const THREADS: usize = 132 * 2048;
        self.results() / results >= THREADS
    }

    /// The kernel's variant, and how many threads it takes. Each takes as many neighbouring channels, of so many bytes each,
    /// as 16 bytes hold and channels and addresses allow, as long as that leaves enough threads.
    fn variant(&self, bytes: usize, addresses: &[CUdeviceptr]) -> (&'static str, usize) {
        if !self.channels_last {
            return ("nchw", self.results());
        }
        let fits = |n: &usize| self.is_aligned(*n, bytes, addresses) && (n * bytes <= 4 || self.fills(*n));
        match [8, 4, 2].into_iter().find(fits) {
            Some(8) => ("nhwc8", self.results() / 8),
            Some(4) => ("nhwc4", self.results() / 4),
            Some(_) => ("nhwc2", self.results() / 2),
            None => ("nhwc", self.results()),
        }
    }

    /// The same for a depthwise convolution. With a stride and a dilation of 1, threads take neighbouring pixels of a row,
    /// too: 7 where that leaves enough threads, else 3.
    fn depthwise_variant(
        &self,
        kernel: (usize, usize),
        config: &ConvConfig,
        bytes: usize,
        addresses: &[CUdeviceptr],
    ) -> (String, usize) {
        let aligned = |n| self.channels_last && bytes <= 4 && self.is_aligned(n, bytes, addresses);
        let (channels, pixels) = match kernel {
            (3, 3) | (5, 5) | (7, 7) if (config.stride, config.dilation) == (1, 1) && aligned(2) => match aligned(4) {
                true if self.fills(4) => (4, 7),
                true if bytes == 2 => (4, 3),
                _ => (2, 3),
            },
            _ => {
                let (variant, threads) = self.variant(bytes, addresses);
                return (variant.into(), threads);
            }
        };
        let strips = self.results() / self.to.1 * self.to.1.div_ceil(pixels);
        (format!("nhwc{channels}x{pixels}_{}", kernel.0), strips / channels)
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
    let (variant, threads) = plane.variant(dtype.size_in_bytes(), &[address(x, device)]);
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
    unsafe { launch.launch(blocks(threads)) }.w()?;
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
    let (variant, threads) = plane.depthwise_variant(kernel, config, dtype.size_in_bytes(), &addresses);
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
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
}
