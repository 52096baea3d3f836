//! Launches of `norm.cu`: layer norm and RMS norm of rows.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{address, kernels, ptx, wide};
use crate::cuda::operator::rows::{Rows, MAX_THREADS};

kernels! {
    /// Layer norm of the rows of `x + bias + residual`.
    LayerNorm<T> = "opara_norm_layer_" {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        bias: vector opt T [columns],
        residual: vector opt T [rows * columns],
        scale: vector in T [columns],
        shift: vector in T [columns],
        y: out T [rows * columns],
    }

    /// RMS norm of the rows of `x`.
    RmsNorm<T> = "opara_norm_rms_" {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        y: out T [rows * columns],
    }

    /// The rows of `x + residual`, and then their RMS norm.
    AddRmsNorm<T> = "opara_norm_add_rms_" {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        residual: tested vector in T [rows * columns],
        scale: vector in T [columns],
        y: out T [2 * rows * columns],
    }
}

/// The variant of a kernel. `short` applies if each thread takes at most one 16-byte vector of a row and all operands are aligned.
fn variant<T: DeviceRepr>(of: Rows, device: &CudaDevice, dtype: DType, operands: &[Option<&CudaView<T>>]) -> String {
    let wide = wide(dtype);
    let is_short = of.columns().is_multiple_of(wide) && of.columns() <= MAX_THREADS * wide;
    let are_aligned = operands.iter().flatten().all(|operand| address(operand, device).is_multiple_of(16));
    format!("{}{}", if is_short && are_aligned { "short_" } else { "" }, dtype.as_str())
}

/// Layer norm of the rows of `x + bias + residual` into `y`.
///
/// # Errors
/// Slices that are too short, or a failed launch.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(super) fn layer_norm<T: DeviceRepr>(
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
    let (rows, columns, y) = (of.rows(), of.columns(), y.as_view_mut());
    if of.elements() == 0 {
        return Ok(());
    }
    let variant = variant(of, device, dtype, &[Some(x), bias, residual, Some(scale), Some(shift)]);
    LayerNorm { rows, columns, eps, x, bias, residual, scale, shift, y }.launch(
        device,
        &variant,
        ptx::NORM,
        of.by_blocks(dtype),
    )
}

/// RMS norm of the rows of `x` into `y`.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn rms_norm<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    eps: f32,
    x: &CudaView<T>,
    scale: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let (rows, columns, y) = (of.rows(), of.columns(), y.as_view_mut());
    if of.elements() == 0 {
        return Ok(());
    }
    let variant = variant(of, device, dtype, &[Some(x), Some(scale)]);
    RmsNorm { rows, columns, eps, x, scale, y }.launch(device, &variant, ptx::NORM, of.by_blocks(dtype))
}

/// Writes the rows of `x + residual` to the first half of `y`, and their RMS norm to the second half.
///
/// # Errors
/// Slices that are too short, or a failed launch.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(super) fn add_rms_norm<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    eps: f32,
    x: &CudaView<T>,
    residual: &CudaView<T>,
    scale: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let (rows, columns, y) = (of.rows(), of.columns(), y.as_view_mut());
    if of.elements() == 0 {
        return Ok(());
    }
    let variant = variant(of, device, dtype, &[Some(x), Some(residual), Some(scale)]);
    AddRmsNorm { rows, columns, eps, x, residual, scale, y }.launch(device, &variant, ptx::NORM, of.by_blocks(dtype))
}
