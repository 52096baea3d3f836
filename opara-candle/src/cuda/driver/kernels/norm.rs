//! Launches of `norm.cu`: normalisations of rows.

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::{arg_or_null, expect, function, wide};
use crate::cuda::ops::ptx;

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

    pub(super) fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The launch of a kernel over rows (`rows.cuh`): part of a warp for each if that is enough, else a block, or a warp
    /// where rows are many.
    pub(super) fn by_warps_or_blocks(&self, dtype: DType) -> LaunchConfig {
        /// Threads that work on a row at most; they then do so again and again.
        const MOST: usize = 512;
        const WARP: usize = 32;
        /// Threads of a block that has several rows.
        const BLOCK: usize = 128;
        /// Rows that fill a GPU by a warp each, and the longest that a warp is not too slow for.
        const MANY: usize = 1024;
        const LONG: usize = 1024;
        let loads = self.columns.div_ceil(wide(dtype));
        let threads = match loads {
            ..=WARP => loads.next_power_of_two(),
            _ if self.rows >= MANY && self.columns <= LONG => WARP,
            _ => loads.next_multiple_of(WARP).min(MOST),
        };
        let together = if threads <= WARP { BLOCK / threads } else { 1 };
        let blocks = self.rows.div_ceil(together);
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, together as u32, 1),
            shared_mem_bytes: 0,
        }
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
    let function = function(device, &format!("opara_layer_norm_{}", dtype.as_str()), "norm", ptx::NORM)?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x);
    arg_or_null(&mut launch, bias);
    arg_or_null(&mut launch, residual);
    launch.arg(scale).arg(shift).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and of the
    // residual, `columns` of the others, nothing through null, and writes each of `rows * columns` of `y`: all were held
    // against the slices above.
    unsafe { launch.launch(of.by_warps_or_blocks(dtype)) }.w()?;
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
    unsafe { launch.launch(of.by_warps_or_blocks(dtype)) }.w()?;
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
    let function = function(device, &format!("opara_add_rms_norm_{}", dtype.as_str()), "norm", ptx::NORM)?;
    let columns = of.columns as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&of.rows).arg(&columns).arg(&eps).arg(x).arg(residual).arg(scale).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * columns` elements of `x` and of the
    // residual and `columns` of the scale, and writes each of twice `rows * columns` of `y`: all were held against the
    // slices above.
    unsafe { launch.launch(of.by_warps_or_blocks(dtype)) }.w()?;
    Ok(())
}
