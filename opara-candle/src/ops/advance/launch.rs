//! Launches of `advance.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaViewMut, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{blocks, function, ptx};

/// Adds `by` to each counter.
///
/// # Errors
/// More elements than 31 bits count, or a launch that fails.
pub(super) fn advance<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    counter: &mut CudaViewMut<T>,
    by: u32,
) -> Result<()> {
    let elements = counter.len();
    if elements == 0 {
        return Ok(());
    }
    let Ok(numel) = i32::try_from(elements) else { bail!("{elements} counters are more than the kernel counts") };
    let function = function(device, &format!("opara_advance_{}", dtype.as_str()), ptx::ADVANCE)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&by).arg(counter);
    // SAFETY: the arguments match the kernel's parameters. It reads and writes `numel` elements, and the slice has as many.
    unsafe { launch.launch(blocks(elements)) }.w()?;
    Ok(())
}
