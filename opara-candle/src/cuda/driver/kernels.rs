//! Launches of the kernels in `cuda/ops`.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};

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

/// Rows of elements, one after the other.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Rows {
    rows: usize,
    /// Elements of each.
    pub columns: usize,
}

impl Rows {
    /// Along the last dimension; `None` if there are more or longer ones than kernels count.
    pub fn of(dims: &[usize]) -> Option<Self> {
        const MOST: usize = i32::MAX as usize;
        let (&columns, rest) = dims.split_last()?;
        let rows = rest.iter().product();
        (rows <= MOST && columns <= MOST).then_some(Self { rows, columns })
    }

    /// Whether 32 bits count all elements.
    pub fn are_countable(&self) -> bool {
        self.rows.checked_mul(self.columns).is_some_and(|elements| elements <= i32::MAX as usize)
    }

    fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The launch of a kernel of `norm.cu`: a warp for each row if that is enough, else a block.
    fn normalised(&self, dtype: DType) -> LaunchConfig {
        /// Threads that work on a row at most; they then do so again and again.
        const MOST: usize = 512;
        const WARP: usize = 32;
        let loads = self.columns.div_ceil(16 / dtype.size_in_bytes());
        let threads = loads.next_multiple_of(WARP).clamp(WARP, MOST);
        let together = if threads == WARP { 4 } else { 1 };
        let blocks = self.rows.div_ceil(together);
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, together as u32, 1),
            shared_mem_bytes: 0,
        }
    }
}

/// Attention's operands: each of `seq` places has `heads` heads of `dim` elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
}

impl Heads {
    /// Those that `hidden` elements fall into; `None` if 32 bits do not count all elements.
    pub fn new(batch: usize, seq: usize, heads: usize, hidden: usize) -> Option<Self> {
        let countable = Rows::of(&[batch, seq, hidden]).is_some_and(|rows| rows.are_countable());
        (countable && heads > 0 && hidden.is_multiple_of(heads)).then(|| Self {
            batch,
            seq,
            heads,
            dim: hidden / heads,
        })
    }

    fn elements(&self) -> usize {
        self.batch * self.seq * self.heads * self.dim
    }

    /// Shape as a product gives them.
    pub fn before(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.seq, self.heads, self.dim)
    }

    /// Shape as attention takes them.
    pub fn after(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.seq, self.dim)
    }
}

/// Memory for elements that the next launch writes.
///
/// # Errors
/// No memory left.
pub(in crate::cuda) fn uninit<T: DeviceRepr>(device: &CudaDevice, elements: usize) -> Result<CudaSlice<T>> {
    // SAFETY: the callers pass it to a launch below, or to cuDNN, which writes every element before anybody reads one;
    // if that fails the slice is dropped.
    unsafe { device.alloc::<T>(elements) }
}

fn function(device: &CudaDevice, name: &str, module: &str, code: &str) -> Result<CudaFunction> {
    Ok(device.get_or_load_custom_func(name, &format!("opara_{module}"), code)?.into_cuda_function())
}

fn address<T>(slice: &CudaView<T>, device: &CudaDevice) -> CUdeviceptr {
    slice.device_ptr(&device.cuda_stream()).0
}

fn blocks(threads: usize) -> LaunchConfig {
    const BLOCK: u32 = 128;
    LaunchConfig { grid_dim: ((threads as u32).div_ceil(BLOCK), 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

fn expect(what: &str, held: usize, needed: usize) -> Result<()> {
    if held < needed {
        bail!("{what} holds {held} elements where {needed} are needed")
    }
    Ok(())
}

/// Keeps the device's stream busy for so long: what is queued up meanwhile runs without gaps.
///
/// # Errors
/// A launch that fails.
#[cfg(feature = "cudnn")]
pub(super) fn wait(device: &CudaDevice, microseconds: u64) -> Result<()> {
    let function = function(device, "opara_wait", "wait", ptx::WAIT)?;
    let nanoseconds = microseconds * 1000;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&nanoseconds);
    // SAFETY: the argument is the one that the kernel declares; it touches no memory.
    unsafe { launch.launch(blocks(1)) }.w()?;
    Ok(())
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

/// Parts that one concatenation takes.
pub(in crate::cuda) const MOST_PARTS: usize = 8;

/// Matrices of `rows` rows side by side, part `i` of `widths[i]` columns, into `y`: at most [`MOST_PARTS`].
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn cat<T: DeviceRepr>(
    device: &CudaDevice,
    rows: usize,
    widths: &[usize],
    parts: &[CudaView<T>],
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let row: usize = widths.iter().sum();
    if parts.len() != widths.len() || parts.len() > MOST_PARTS || rows * row > u32::MAX as usize {
        bail!("a concatenation of {} parts, {} widths and {} elements", parts.len(), widths.len(), rows * row)
    }
    for (part, width) in parts.iter().zip(widths) {
        expect("a part", part.len(), rows * width)?;
    }
    expect("the result", y.len(), rows * row)?;
    // The largest unit that divides all rows and addresses.
    let element = std::mem::size_of::<T>();
    let addresses: Vec<_> = parts.iter().map(|part| address(part, device)).collect();
    let divides = |&(_, unit): &(&str, usize)| {
        widths.iter().all(|width| (width * element).is_multiple_of(unit))
            && addresses.iter().all(|a| a % unit as u64 == 0)
    };
    let units = [("v128", 16), ("i64", 8), ("u32", 4), ("i16", 2)].into_iter().find(divides);
    let (name, unit) = units.unwrap_or(("u8", 1));
    let function = function(device, &format!("opara_cat_{name}"), "cat", ptx::CAT)?;
    let (units, row) = (rows * row * element / unit, (row * element / unit) as u32);
    let mut widths: Vec<u32> = widths.iter().map(|width| (width * element / unit) as u32).collect();
    widths.resize(MOST_PARTS, 0);
    let null = 0 as CUdeviceptr;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&units).arg(&row).arg(y);
    for (i, width) in widths.iter().enumerate() {
        match parts.get(i) {
            Some(part) => launch.arg(part),
            None => launch.arg(&null),
        };
        launch.arg(width);
    }
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * widths[i]` elements of part `i`, none of
    // those without width, and writes each of `rows * row` of `y`: all were held against the slices above.
    unsafe { launch.launch(blocks(units)) }.w()?;
    Ok(())
}

/// Layer normalisation of the rows of `x + bias + residual` into `y`.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(in crate::cuda) fn layer_norm<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    eps: f32,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    residual: Option<&CudaView<T>>,
    scale: &CudaView<T>,
    shift: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), of.elements())?;
    expect("the bias", bias.map_or(of.columns, CudaView::len), of.columns)?;
    expect("the residual", residual.map_or(of.elements(), CudaView::len), of.elements())?;
    expect("the scale", scale.len(), of.columns)?;
    expect("the shift", shift.len(), of.columns)?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_layer_norm_{}", dtype.as_str()), "norm", ptx::NORM)?;
    let (columns, null) = (of.columns as u32, 0 as CUdeviceptr);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x);
    for operand in [bias, residual] {
        match operand {
            Some(operand) => launch.arg(operand),
            None => launch.arg(&null),
        };
    }
    launch.arg(scale).arg(shift).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and of the
    // residual, `columns` of the others, nothing through null, and writes each of `rows * columns` of `y`: all were held
    // against the slices above.
    unsafe { launch.launch(of.normalised(dtype)) }.w()?;
    Ok(())
}

/// Root-mean-square normalisation of the rows of `x` into `y`.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn rms_norm<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    eps: f32,
    x: &CudaView<T>,
    scale: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), of.elements())?;
    expect("the scale", scale.len(), of.columns)?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_rms_norm_{}", dtype.as_str()), "norm", ptx::NORM)?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x).arg(scale).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and `columns`
    // of the scale, and writes each of `rows * columns` of `y`: all were held against the slices above.
    unsafe { launch.launch(of.normalised(dtype)) }.w()?;
    Ok(())
}

/// The launch of a kernel of `element.cu`, whose threads make as many elements as 16 bytes hold.
fn wide_blocks(elements: usize, dtype: DType) -> LaunchConfig {
    blocks(elements.div_ceil(16 / dtype.size_in_bytes()))
}

/// `activation(x + bias)` into `y`, the bias being that of each column.
///
/// # Errors
/// Slices that are too short, more elements than 32 bits count, or a launch that fails.
pub(in crate::cuda) fn bias_act<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    activation: Activation,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if !of.are_countable() {
        bail!("{of:?} have more elements than the kernel counts")
    }
    expect("the operand", x.len(), of.elements())?;
    expect("the bias", bias.map_or(of.columns, CudaView::len), of.columns)?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_bias_act_{}", dtype.as_str()), "element", ptx::ELEMENT)?;
    let (numel, columns, null) = (of.elements() as u32, of.columns as u32, 0 as CUdeviceptr);
    let activation = match activation {
        Activation::None => 0i32,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::GeluErf => 3,
        Activation::Silu => 4,
    };
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&columns).arg(&activation).arg(x);
    match bias {
        Some(bias) => launch.arg(bias),
        None => launch.arg(&null),
    };
    launch.arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `numel` elements of `x` and `columns` of the
    // bias, nothing through null, and writes each of `numel` of `y`: all were held against the slices above, and 31 bits
    // count them.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}

/// `(x + bias) * scale` into `y`, heads before places, the bias being that of each head's elements.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn split_heads<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: &Heads,
    scale: f64,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let hidden = of.heads * of.dim;
    expect("the operand", x.len(), of.elements())?;
    expect("the bias", bias.map_or(hidden, CudaView::len), hidden)?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_split_heads_{}", dtype.as_str()), "element", ptx::ELEMENT)?;
    let sizes = [of.elements(), of.seq, of.heads, of.dim].map(|n| n as u32);
    let null = 0 as CUdeviceptr;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&scale).arg(x);
    match bias {
        Some(bias) => launch.arg(bias),
        None => launch.arg(&null),
    };
    launch.arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `elements()` of `x` and `heads * dim` of the
    // bias, nothing through null, and writes each of `elements()` of `y`: all were held against the slices above, and 31
    // bits count them.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
