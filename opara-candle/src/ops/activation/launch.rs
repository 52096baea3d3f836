//! Launches of `activation.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::Activation;
use crate::cuda::driver::kernels::{arg_or_null, expect, function, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

/// Writes `activation(x + bias)` to `y`. The bias has one element per column.
///
/// # Errors
/// Slices that are too short, 2^31 elements or more, or a failed launch.
pub(super) fn bias_act<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    activation: Activation,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if !of.are_countable() {
        bail!("{of:?}: the kernel indexes with 31 bits")
    }
    expect("the operand", x.len(), of.elements())?;
    expect("the bias", bias.map_or(of.columns(), CudaView::len), of.columns())?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_bias_act_{}", dtype.as_str()), ptx::ACTIVATION)?;
    let (numel, columns) = (of.elements() as u32, of.columns() as u32);
    let activation = activation.code();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&columns).arg(&activation).arg(x);
    arg_or_null(&mut launch, bias);
    launch.arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `numel` elements of `x`, reads `columns` elements
    // of the bias unless that is null, and writes `numel` elements of `y`. The slice lengths were checked above, and
    // `numel` fits into 31 bits.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
