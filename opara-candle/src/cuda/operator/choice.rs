//! Autotuning: measures several implementations of the same computation once, and keeps the fastest.

use std::hash::Hash;

use candle::{CudaDevice, Error, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::cuda::driver::{kernels, Stream};

/// The chosen implementation per device and `K`. It never changes afterwards, so that a replay computes the same as
/// eager execution.
pub(crate) struct Choices<K, W>(Mutex<Option<HashMap<(usize, K), W>>>);

impl<K: Eq + Hash, W: Copy> Choices<K, W> {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Runs the implementation that was chosen for `key`. The first time, measures `implementations`, each with a
    /// factor for its time, and chooses the fastest. Inside a capture nothing can be measured: a key that is new there
    /// gets the `guess`.
    pub fn run<R>(
        &self,
        device: &CudaDevice,
        key: K,
        implementations: impl FnOnce() -> Result<Vec<(W, f64)>>,
        guess: impl FnOnce() -> Result<W>,
        mut run: impl FnMut(W) -> Result<R>,
    ) -> Result<R> {
        let key = (device.cuda_stream().context().ordinal(), key);
        let known = self.0.lock().get_or_insert_default().get(&key).copied();
        let implementation = match known {
            Some(known) => known,
            None => {
                let stream = Stream::of(&candle::Device::Cuda(device.clone())).map_err(Error::wrap)?;
                let implementation = match stream.is_capturing().map_err(Error::wrap)? {
                    true => guess()?,
                    false => fastest(device, &stream, &implementations()?, &mut run)?,
                };
                *self.0.lock().get_or_insert_default().entry(key).or_insert(implementation)
            }
        };
        run(implementation)
    }
}

/// The implementation with the least device time, multiplied by its factor; the first one if none works.
fn fastest<W: Copy, R>(
    device: &CudaDevice,
    stream: &Stream,
    implementations: &[(W, f64)],
    mut run: impl FnMut(W) -> Result<R>,
) -> Result<W> {
    const ROUNDS: usize = 3;
    const LONGEST_WAIT_US: u64 = 5_000;
    /// The shortest sample counts: a slow host makes a sample longer, never shorter.
    const SAMPLES: usize = 4;
    if let [(only, _)] = implementations {
        return Ok(*only);
    }
    let event = || stream.event(true).map_err(Error::wrap);
    let (start, end) = (event()?, event()?);
    let mut best = (f64::INFINITY, implementations[0].0);
    for &(implementation, factor) in implementations {
        let mut time = || -> Result<f64> {
            run(implementation)?;
            let (launched, host_us) = opara_plan::stopwatch::wall_us(|| run(implementation));
            launched?;
            let mut least = f64::INFINITY;
            for _ in 0..SAMPLES {
                // Keep the GPU busy for longer than the host needs to launch the rest, so that the sample measures GPU
                // time. The wait is limited: if other threads hold the driver's locks, the host is slow, and a longer
                // wait would also slow down the other threads.
                kernels::wait(device, (100 + (2. * ROUNDS as f64 * host_us) as u64).min(LONGEST_WAIT_US))?;
                stream.record(&start).map_err(Error::wrap)?;
                for _ in 0..ROUNDS {
                    run(implementation)?;
                }
                stream.record(&end).map_err(Error::wrap)?;
                least = least.min(start.elapsed_us(&end).map_err(Error::wrap)?);
            }
            Ok(least)
        };
        // Libraries report only at run time that an algorithm does not support the operands.
        if let Some(weighted) = time().ok().map(|us| us * factor).filter(|weighted| *weighted < best.0) {
            best = (weighted, implementation);
        }
    }
    Ok(best.1)
}
