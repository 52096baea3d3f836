//! The duration of a call.

use std::time::Instant;

use candle::Device;

use super::driver::Stream;
use crate::Result;
use opara_plan::latency::Sample;
use opara_plan::stopwatch::micros_since;

/// Times one call of `f`. The device time is that between an event before `f` and one after its launches.
pub(crate) fn sample(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<Sample> {
    let stream = Stream::of(device)?;
    let (start, end) = (stream.event(true)?, stream.event(true)?);
    stream.record(&start)?;
    let began = Instant::now();
    f()?;
    let host_us = micros_since(began);
    stream.record(&end)?;
    let gpu_us = start.elapsed_us(&end)?;
    Ok(Sample { gpu_us, wall_us: micros_since(began), host_us })
}
