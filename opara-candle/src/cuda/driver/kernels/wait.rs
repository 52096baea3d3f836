//! Launches of `wait.cu`.

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, Result};
use cudarc::driver::PushKernelArg;

use super::ptx;
use super::{blocks, function};

/// Keeps the device's stream busy for this many microseconds, so that launches queued meanwhile run without gaps.
///
/// # Errors
/// A failed launch.
pub(crate) fn wait(device: &CudaDevice, microseconds: u64) -> Result<()> {
    let function = function(device, "opara_wait", ptx::WAIT)?;
    let nanoseconds = microseconds * 1000;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&nanoseconds);
    // SAFETY: the argument is the one that the kernel declares; the kernel accesses no memory.
    unsafe { launch.launch(blocks(1)) }.w()?;
    Ok(())
}
