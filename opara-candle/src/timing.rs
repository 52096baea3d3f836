//! Latency, measured the same way for eager and for replay.

use std::collections::BTreeMap;

use candle::Device;
use serde::Serialize;

pub(crate) use crate::clock::wall_us;
pub use crate::clock::Sample;
use crate::Result;

/// Latency of one call in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half of the calls were faster.
    pub median_us: f64,
    /// 99 of 100 calls were faster.
    pub p99_us: f64,
    /// The fastest call.
    pub min_us: f64,
}

impl Latency {
    /// Summary of samples in microseconds; zeros where there is none.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at =
            |share: f64| samples.get(((samples.len() as f64 * share) as usize).min(samples.len().saturating_sub(1)));
        let at = |share: f64| at(share).copied().unwrap_or(0.);
        Self { median_us: at(0.5), p99_us: at(0.99), min_us: at(0.) }
    }
}

/// One call of `f`, by the device's clock and by the host's.
///
/// # Errors
/// Those of `f` and of the driver.
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
/// Those of `f` and of the driver.
pub fn once(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<f64> {
    Ok(sample(device, f)?.gpu_us)
}

/// The result of `f`, whose error stays what it is, and the time that it took as [`once`] measures it.
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
/// Those of `f` and of the driver.
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

/// Milliseconds by stage of building.
#[derive(Default)]
pub(crate) struct Stages(pub BTreeMap<&'static str, f64>);

impl Stages {
    pub fn time<T>(&mut self, stage: &'static str, f: impl FnOnce() -> T) -> T {
        let (result, us) = wall_us(f);
        *self.0.entry(stage).or_default() += us / 1e3;
        result
    }

    /// Of a stage's time this much belongs to another one.
    pub fn move_ms(&mut self, from: &'static str, to: &'static str, ms: f64) {
        *self.0.entry(from).or_default() -= ms;
        *self.0.entry(to).or_default() += ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_few_and_of_no_samples() {
        let latency = Latency::of(vec![3., 1., 2.]);
        assert_eq!((latency.min_us, latency.median_us, latency.p99_us), (1., 2., 3.));
        assert_eq!(Latency::of(vec![]).median_us, 0.);
    }
}
