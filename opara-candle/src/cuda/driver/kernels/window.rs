//! Launches of `window.cu`: pools and depthwise convolutions.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::ptx;
use super::{address, blocks, expect, extent, function};
use crate::ops::{Activation, ConvConfig, PoolConfig, PoolKind};

/// Threads that an H200 runs at once.
const H200_THREADS: usize = 132 * 2048;

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

    /// Whether channels lie together and a thread can take so many at once, of so many bytes each.
    fn is_aligned(&self, channels: usize, bytes: usize, addresses: &[CUdeviceptr]) -> bool {
        let size = channels * bytes;
        let aligned = addresses.iter().all(|address| address.is_multiple_of(size as u64));
        self.channels_last && size <= 16 && self.channels.is_multiple_of(channels) && aligned
    }

    /// The kernel's variant whose threads take so many neighbouring channels, or one each, and how many threads it takes.
    fn taking(&self, channels: Option<usize>) -> (String, usize) {
        let layout = if self.channels_last { "nhwc" } else { "nchw" };
        match channels {
            Some(n) => (format!("{layout}{n}"), self.results() / n),
            None => (layout.into(), self.results()),
        }
    }

    /// Whether threads that make so many results each are enough to hide the latency of loads: as many as an H200 runs at
    /// once.
    fn fills(&self, results: usize) -> bool {
        self.results() / results >= H200_THREADS
    }

    /// The kernel's variant for a pool, and how many threads it takes. Each takes as many neighbouring channels, of so many
    /// bytes each, as 16 bytes hold and channels and addresses allow: that was the fastest on an H200 for every size. Of windows
    /// of 3 by 3 next to each other they take three where that leaves an eighth of the threads that it runs at once.
    fn pool_variant(&self, windows: &Windows, bytes: usize, addresses: &[CUdeviceptr]) -> (String, usize) {
        const PIXELS: usize = 3;
        let channels = [8, 4, 2].into_iter().find(|&n| self.is_aligned(n, bytes, addresses));
        let (variant, threads) = self.taking(channels);
        let has_strips = matches!((channels, bytes), (Some(8), 2) | (Some(4), 4));
        let strips = threads / self.to.1 * self.to.1.div_ceil(PIXELS);
        match has_strips && (windows.kernel, windows.stride) == (3, 1) && strips >= H200_THREADS / 8 {
            true => (format!("{variant}x{PIXELS}_3s1"), strips),
            false => (variant, threads),
        }
    }

    /// The same for a depthwise convolution, whose threads take more than 4 bytes only as long as that leaves enough threads.
    /// Without dilation they take neighbouring pixels of a row, too: as many as were fastest on an H200 where they are enough,
    /// and where they are not.
    fn depthwise_variant(
        &self,
        kernel: (usize, usize),
        config: &ConvConfig,
        bytes: usize,
        addresses: &[CUdeviceptr],
    ) -> (String, usize) {
        let stride = config.stride;
        let aligned = |n| bytes <= 4 && self.is_aligned(n, bytes, addresses);
        let is_square = matches!(kernel, (3, 3) | (5, 5) | (7, 7));
        if !is_square || config.dilation > 1 || stride > 2 || !aligned(2) {
            let fits = |n: &usize| self.is_aligned(*n, bytes, addresses) && (n * bytes <= 4 || self.fills(*n));
            return self.taking([8, 4, 2].into_iter().find(fits));
        }
        let (channels, pixels) = match (bytes, stride, self.fills(4)) {
            (4, _, true) => (2, 7),
            (2, 1, true) if aligned(4) => (4, 7),
            (2, 1, false) if aligned(4) => (4, 3),
            (2, _, true) if aligned(4) => (4, 4),
            (2, _, false) if aligned(4) => (4, 2),
            _ => (2, 3),
        };
        let strips = self.results() / self.to.1 * self.to.1.div_ceil(pixels);
        (format!("nhwc{channels}x{pixels}_{}s{stride}", kernel.0), strips / channels)
    }
}

/// What a pool makes of which windows.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Windows {
    pub kind: PoolKind,
    /// Elements of a window, both ways.
    pub kernel: usize,
    /// Elements from one window to the next, both ways.
    pub stride: usize,
    /// Padding above, to the left, below and to the right; less than none where the first window begins inside.
    pub edges: [i32; 4],
    /// Whether a mean counts the padding.
    pub count_padding: bool,
}

impl Windows {
    /// Those of a pool.
    pub fn new(kind: PoolKind, config: &PoolConfig) -> Self {
        let PoolConfig { kernel, stride, padding: p, count_padding, .. } = *config;
        let edges = [p.top, p.left, p.bottom, p.right].map(|n| n as i32);
        Self { kind, kernel, stride, edges, count_padding }
    }
}

/// A pool of `x`, of which an image, a plane and a row begin `pitch` elements after the one before, into `y`, laid out as
/// `plane` says. The channels of a pixel and the pixels of a row of `x` lie as there.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn pool<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    windows: &Windows,
    pitch: [usize; 3],
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the result", y.len(), plane.results())?;
    if plane.results() == 0 {
        return Ok(());
    }
    let (h, w) = plane.from;
    let column = if plane.channels_last { plane.channels } else { 1 };
    let channel = if plane.channels_last { 1 } else { pitch[1] };
    let sizes = [(plane.batch, pitch[0]), (plane.channels, channel), (h, pitch[2]), (w, column)];
    expect("the operand", x.len(), extent(sizes))?;
    if pitch.iter().any(|&pitch| u32::try_from(pitch).is_err()) {
        bail!("rows {pitch:?} elements apart are further than the kernels count")
    }
    if plane.channels_last && (pitch[0] % plane.channels, pitch[2] % plane.channels) != (0, 0) {
        bail!("rows {pitch:?} elements apart, which is no whole number of {} channels", plane.channels)
    }
    let (variant, threads) = plane.pool_variant(windows, dtype.size_in_bytes(), &[address(x, device)]);
    let name = format!("opara_pool_{variant}_{}", dtype.as_str());
    let function = function(device, &name, "window", ptx::WINDOW)?;
    let numel = plane.results();
    let sizes = [plane.channels, h, w, plane.to.0, plane.to.1, windows.kernel, windows.stride].map(|n| n as i32);
    let integers = sizes.into_iter().chain(windows.edges).chain([i32::from(windows.count_padding)]).collect::<Vec<_>>();
    let kind = match windows.kind {
        PoolKind::Max => 0i32,
        PoolKind::Mean => 1,
    };
    let pitch = pitch.map(|pitch| pitch as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&kind);
    for n in &integers {
        launch.arg(n);
    }
    for n in &pitch {
        launch.arg(n);
    }
    launch.arg(x).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `x` from its first to its last element as the
    // pitches place them and writes each of `results()` of `y`: both were held against the slices above, and 32 bits count
    // them.
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
    let [before, after] = [config.input_activation, config.activation].map(|a| usize::from(a == Activation::Relu));
    let rest = [config.stride, config.dilation, p.top, p.left, before, after];
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
