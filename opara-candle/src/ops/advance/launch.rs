//! Launches of `advance.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaViewMut, DeviceRepr};

use crate::cuda::driver::kernels::{blocks, kernels, ptx};

kernels! {
    /// Adds `by` to each counter.
    Advance<T> = "opara_elementwise_advance_" for [u32 i64] {
        numel: u32, by: u32,
        counter: added T [numel],
    }
}

/// Adds `by` to each counter.
///
/// # Errors
/// More elements than 31 bits count, or a launch that fails.
pub(super) fn advance<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    counter: CudaViewMut<T>,
    by: u32,
) -> Result<()> {
    let numel = counter.len();
    if numel == 0 {
        return Ok(());
    }
    if numel > i32::MAX as usize {
        bail!("{numel} counters are more than the kernel counts")
    }
    Advance { numel, by: by as usize, counter }.launch(device, dtype.as_str(), ptx::ADVANCE, blocks(numel))
}
