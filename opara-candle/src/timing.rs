//! Latency, measured the same way for eager and for replay.

use candle::Device;

use crate::Result;
pub use opara_plan::latency::{Latency, Sample};
pub(crate) use opara_plan::stopwatch::{wall_us, StageTimes};

/// Do launches that take `us` together wait for the device, and not for the host? The host needs less than half of this limit for each.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
pub(crate) fn keeps_busy(us: f64, launches: usize) -> bool {
    const US_A_LAUNCH: f64 = 20.;
    us > US_A_LAUNCH * launches as f64
}

/// One call of `f`, by the device's clock and by the host's.
///
/// # Errors
/// Errors of `f` and of the driver.
pub fn sample(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<Sample> {
    if device.is_cuda() {
        return crate::cuda::sample(device, f);
    }
    let (result, us) = wall_us(f);
    result?;
    Ok(Sample { gpu_us: us, wall_us: us, host_us: us })
}

/// Time of one call of `f` in microseconds: between two events on the device's stream on a GPU, wall time on the CPU.
///
/// # Errors
/// Errors of `f` and of the driver.
pub fn once(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<f64> {
    Ok(sample(device, f)?.gpu_us)
}

/// The result of `f`, with its own error type, and its time as [`once`] measures it.
pub(crate) fn timed<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let mut result = None;
    let us = once(device, || {
        result = Some(f());
        Ok(())
    })?;
    match result {
        Some(result) => Ok((result?, us)),
        None => unreachable!("it was called"),
    }
}

/// Latency of `iters` calls of `f` after `warmup` more.
///
/// # Errors
/// Errors of `f` and of the driver.
pub fn measure(
    device: &Device,
    warmup: usize,
    iters: usize,
    mut f: impl FnMut() -> candle::Result<()>,
) -> Result<Latency> {
    for _ in 0..warmup {
        f()?;
    }
    (0..iters).map(|_| once(device, &mut f)).collect::<Result<_>>().map(Latency::of)
}
