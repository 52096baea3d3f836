//! GPU memory: free bytes, and the peak of some work.

use candle::Device;

use crate::{cuda, Result};

/// Free memory of a GPU in bytes, after all its work is done; memory that candle's pool holds ready counts as used.
///
/// # Errors
/// A device that is no GPU, or a call of the driver that failed.
pub fn free_memory(device: &Device) -> Result<usize> {
    cuda::free_memory(device)
}

/// Bytes in use outside candle's memory pool after all work is done: contexts, code, workspaces of libraries, and the driver's
/// memory for graphs. Other programs' memory counts, too.
///
/// # Errors
/// A device that is no GPU, or a call of the driver that failed.
pub fn used_outside_pool(device: &Device) -> Result<u64> {
    cuda::used_outside_pool(device)
}

/// Bytes of the device's memory pool, which candle allocates from, in use before, at most during, and after some work.
/// Memory that the pool holds ready does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Before.
    pub before: u64,
    /// The high-water mark.
    pub peak: u64,
    /// After, with the result of the work still alive.
    pub after: u64,
}

/// Does some work and watches the pool; on the CPU there is nothing to watch.
///
/// # Errors
/// Errors of `f`, and of the driver.
pub fn watch<T, E: From<crate::Error>>(
    device: &Device,
    f: impl FnOnce() -> Result<T, E>,
) -> Result<(T, Option<Usage>), E> {
    if !device.is_cuda() {
        return Ok((f()?, None));
    }
    let before = cuda::pool_in_use(device)?;
    cuda::reset_pool_peak(device)?;
    let result = f()?;
    let after = cuda::pool_in_use(device)?;
    // Work that allocates nothing leaves the mark at 0.
    let peak = cuda::pool_peak(device)?.max(before).max(after);
    Ok((result, Some(Usage { before, peak, after })))
}
