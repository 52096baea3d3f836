//! Which of several ways to compute the same is the fastest, measured once.

use std::hash::Hash;

use candle::{CudaDevice, Error, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::cuda::driver::{kernels, Stream};

/// The way for each `K` that a GPU has run: the same at every later call, so that a replay computes what eager execution does.
pub(crate) struct Choices<K, W>(Mutex<Option<HashMap<(usize, K), W>>>);

impl<K: Eq + Hash, W: Copy> Choices<K, W> {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// What `run` gives the way that was chosen for `key`: the first time, the fastest of `ways`, each with a factor of its
    /// time. A capture cannot measure: what comes there first goes by the `guess`.
    pub fn run<R>(
        &self,
        device: &CudaDevice,
        key: K,
        ways: impl FnOnce() -> Result<Vec<(W, f64)>>,
        guess: impl FnOnce() -> Result<W>,
        mut run: impl FnMut(W) -> Result<R>,
    ) -> Result<R> {
        let key = (device.cuda_stream().context().ordinal(), key);
        let known = self.0.lock().get_or_insert_default().get(&key).copied();
        let way = match known {
            Some(known) => known,
            None => {
                let stream = Stream::of(&candle::Device::Cuda(device.clone())).map_err(Error::wrap)?;
                let way = match stream.is_capturing().map_err(Error::wrap)? {
                    true => guess()?,
                    false => fastest(device, &stream, &ways()?, &mut run)?,
                };
                *self.0.lock().get_or_insert_default().entry(key).or_insert(way)
            }
        };
        run(way)
    }
}

/// The one of `ways` that takes the device the least time, multiplied by its factor; the first one, if none works.
fn fastest<W: Copy, R>(
    device: &CudaDevice,
    stream: &Stream,
    ways: &[(W, f64)],
    mut run: impl FnMut(W) -> Result<R>,
) -> Result<W> {
    const ROUNDS: usize = 3;
    const LONGEST_WAIT_US: u64 = 5_000;
    /// The fastest counts: a host that falls behind makes a sample longer, never shorter.
    const SAMPLES: usize = 4;
    if let [(only, _)] = ways {
        return Ok(*only);
    }
    let event = || stream.event(true).map_err(Error::wrap);
    let (start, end) = (event()?, event()?);
    let mut best = (f64::INFINITY, ways[0].0);
    for &(way, factor) in ways {
        let mut time = || -> Result<f64> {
            run(way)?;
            let (launched, host_us) = opara_plan::stopwatch::wall_us(|| run(way));
            launched?;
            let mut least = f64::INFINITY;
            for _ in 0..SAMPLES {
                // Longer than the host takes for the rest: it is the GPU's time that counts. Not without end: a host whose other
                // threads hold the driver is slow, and a GPU that waits for it makes those threads slower.
                kernels::wait(device, (100 + (2. * ROUNDS as f64 * host_us) as u64).min(LONGEST_WAIT_US))?;
                stream.record(&start).map_err(Error::wrap)?;
                for _ in 0..ROUNDS {
                    run(way)?;
                }
                stream.record(&end).map_err(Error::wrap)?;
                least = least.min(start.elapsed_us(&end).map_err(Error::wrap)?);
            }
            Ok(least)
        };
        // Libraries say of some only when they run that they do not support what they are asked.
        if let Some(counts) = time().ok().map(|us| us * factor).filter(|counts| *counts < best.0) {
            best = (counts, way);
        }
    }
    Ok(best.1)
}
