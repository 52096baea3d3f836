//! Launches of `norm.cu`: normalisations of rows.

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::ptx;
use super::{address, arg_or_null, expect, function, wide};

const WARP: usize = 32;
/// Threads that work on a row at most (`rows.cuh`); they then do so again and again.
const MOST: usize = 1024;

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
        const COUNTED: usize = i32::MAX as usize;
        let (&columns, rest) = dims.split_last()?;
        let rows = rest.iter().product();
        (rows <= COUNTED && columns <= COUNTED).then_some(Self { rows, columns })
    }

    /// Whether 32 bits count all elements.
    pub fn are_countable(&self) -> bool {
        self.rows.checked_mul(self.columns).is_some_and(|elements| elements <= i32::MAX as usize)
    }

    pub(super) fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The launch of a kernel over rows (`rows.cuh`): part of a warp for each if that is enough, else a block.
    pub(super) fn by_blocks(&self, dtype: DType) -> LaunchConfig {
        let loads = self.columns.div_ceil(wide(dtype));
        self.by(if loads <= WARP { loads.next_power_of_two() } else { loads.next_multiple_of(WARP).min(MOST) })
    }

    /// The same, but for a warp where rows are many.
    pub(super) fn by_warps_or_blocks(&self, dtype: DType) -> LaunchConfig {
        /// Rows that fill a GPU by a warp each, and the longest that a warp is not too slow for.
        const MANY: usize = 1024;
        const LONG: usize = 1024;
        let loads = self.columns.div_ceil(wide(dtype));
        match loads > WARP && self.rows >= MANY && self.columns <= LONG {
            true => self.by(WARP),
            false => self.by_blocks(dtype),
        }
    }

    fn by(&self, threads: usize) -> LaunchConfig {
        /// Threads of a block that has several rows.
        const BLOCK: usize = 128;
        let together = if threads <= WARP { BLOCK / threads } else { 1 };
        let blocks = self.rows.div_ceil(together);
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, together as u32, 1),
            shared_mem_bytes: 0,
        }
    }

    /// The kernel `name` of `norm.cu`: a leaner one where threads take all of a row, and 16 bytes of the operands, at once.
    fn norm<T: DeviceRepr>(
        &self,
        device: &CudaDevice,
        name: &str,
        dtype: DType,
        operands: &[Option<&CudaView<T>>],
    ) -> Result<CudaFunction> {
        let wide = wide(dtype);
        let is_short = self.columns.is_multiple_of(wide) && self.columns <= MOST * wide;
        let are_aligned = operands.iter().flatten().all(|operand| address(operand, device).is_multiple_of(16));
        let short = if is_short && are_aligned { "short_" } else { "" };
        function(device, &format!("opara_{name}_{short}{}", dtype.as_str()), "norm", ptx::NORM)
    }
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
    let function = of.norm(device, "layer_norm", dtype, &[Some(x), bias, residual, Some(scale), Some(shift)])?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x);
    arg_or_null(&mut launch, bias);
    arg_or_null(&mut launch, residual);
    launch.arg(scale).arg(shift).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and of the
    // residual, `columns` of the others, nothing through null, and writes each of `rows * columns` of `y`: all were held
    // against the slices above, and `of.norm` saw whether 16 bytes may be taken at once.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
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
    let function = of.norm(device, "rms_norm", dtype, &[Some(x), Some(scale)])?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x).arg(scale).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and `columns`
    // of the scale, and writes each of `rows * columns` of `y`: all were held against the slices above, and `of.norm` saw
    // whether 16 bytes may be taken at once.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
    Ok(())
}

/// The rows of `x + residual` into the first half of `y`, and their root-mean-square normalisation into the second.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(in crate::cuda) fn add_rms_norm<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    eps: f32,
    x: &CudaView<T>,
    residual: &CudaView<T>,
    scale: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), of.elements())?;
    expect("the residual", residual.len(), of.elements())?;
    expect("the scale", scale.len(), of.columns)?;
    expect("the result", y.len(), 2 * of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = of.norm(device, "add_rms_norm", dtype, &[Some(x), Some(residual), Some(scale)])?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x).arg(residual).arg(scale).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and of the
    // residual and `columns` of the scale, and writes each of twice `rows * columns` of `y`: all were held against the
    // slices above, and `of.norm` saw whether 16 bytes may be taken at once.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
    Ok(())
}
