//! Launches of `norm.cu`: layer norm and RMS norm of rows.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, arg_or_null, expect, function, ptx, wide};
use crate::cuda::operator::rows::{Rows, MAX_THREADS};

/// The kernel `name` of `norm.cu`. The `short` variant applies if each thread takes at most one 16-byte vector of a row
/// and all operands are aligned.
fn kernel<T: DeviceRepr>(
    of: Rows,
    device: &CudaDevice,
    name: &str,
    dtype: DType,
    operands: &[Option<&CudaView<T>>],
) -> Result<CudaFunction> {
    let wide = wide(dtype);
    let is_short = of.columns().is_multiple_of(wide) && of.columns() <= MAX_THREADS * wide;
    let are_aligned = operands.iter().flatten().all(|operand| address(operand, device).is_multiple_of(16));
    let short = if is_short && are_aligned { "short_" } else { "" };
    function(device, &format!("opara_{name}_{short}{}", dtype.as_str()), ptx::NORM)
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
    expect("the operand", x.len(), of.elements())?;
    expect("the bias", bias.map_or(of.columns(), CudaView::len), of.columns())?;
    expect("the residual", residual.map_or(of.elements(), CudaView::len), of.elements())?;
    expect("the scale", scale.len(), of.columns())?;
    expect("the shift", shift.len(), of.columns())?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = kernel(of, device, "layer_norm", dtype, &[Some(x), bias, residual, Some(scale), Some(shift)])?;
    let (rows, columns) = (of.rows(), of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows).arg(&columns).arg(&eps).arg(x);
    arg_or_null(&mut launch, bias);
    arg_or_null(&mut launch, residual);
    launch.arg(scale).arg(shift).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * columns` elements of `x` and of the
    // residual and `columns` elements of the other operands, nothing through null pointers, and writes `rows * columns`
    // elements of `y`. The slice lengths were checked above, `kernel` checked lengths and alignment for 16-byte loads,
    // and `Rows::of` that rows and columns fit into 31 bits.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
    Ok(())
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
    expect("the operand", x.len(), of.elements())?;
    expect("the scale", scale.len(), of.columns())?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = kernel(of, device, "rms_norm", dtype, &[Some(x), Some(scale)])?;
    let (rows, columns) = (of.rows(), of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows).arg(&columns).arg(&eps).arg(x).arg(scale).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * columns` elements of `x` and `columns`
    // elements of the scale, and writes `rows * columns` elements of `y`. The slice lengths were checked above,
    // `kernel` checked lengths and alignment for 16-byte loads, and `Rows::of` that rows and columns fit into 31 bits.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
    Ok(())
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
    expect("the operand", x.len(), of.elements())?;
    expect("the residual", residual.len(), of.elements())?;
    expect("the scale", scale.len(), of.columns())?;
    expect("the result", y.len(), 2 * of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = kernel(of, device, "add_rms_norm", dtype, &[Some(x), Some(residual), Some(scale)])?;
    let (rows, columns) = (of.rows(), of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows).arg(&columns).arg(&eps).arg(x).arg(residual).arg(scale).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * columns` elements of `x` and of the
    // residual and `columns` elements of the scale, and writes `2 * rows * columns` elements of `y`. The slice lengths
    // were checked above, `kernel` checked lengths and alignment for 16-byte loads, and `Rows::of` that rows and
    // columns fit into 31 bits.
    unsafe { launch.launch(of.by_blocks(dtype)) }.w()?;
    Ok(())
}
