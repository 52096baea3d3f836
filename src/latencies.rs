//! Latencies of several ways to run one model.

use std::fmt;

use candle::{Device, Tensor};
use opara_candle::timing::{self, Latency};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Unmeasured passes of each kind, in which memory pools fill up and clocks rise.
const WARMUP: usize = 3;

/// A way to run a model, with its name.
pub type Run<'a> = (&'static str, &'a dyn Fn() -> candle::Result<Vec<Tensor>>);

/// Latencies by name. The others are compared with the first.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies(Vec<(&'static str, Latency)>);

impl Latencies {
    /// Measures `iters` passes of each run. The runs alternate, so that a change of the machine's speed affects all of
    /// them.
    ///
    /// # Errors
    /// An error of a run.
    pub fn measure(device: &Device, iters: usize, runs: &[Run]) -> opara_candle::Result<Self> {
        for (_, run) in runs {
            timing::measure(device, WARMUP, 0, || run().map(drop))?;
        }
        let mut samples = vec![Vec::with_capacity(iters); runs.len()];
        for _ in 0..iters {
            for ((_, run), samples) in runs.iter().zip(&mut samples) {
                samples.push(timing::once(device, || run().map(drop))?);
            }
        }
        let latencies = samples.into_iter().map(Latency::of);
        Ok(Self(runs.iter().map(|(name, _)| *name).zip(latencies).collect()))
    }

    /// The latency of the run called `name`.
    pub fn get(&self, name: &str) -> Option<Latency> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, latency)| *latency)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20}{:>12}{:>12}{:>10}", "latency, us", "median", "p99", "speed-up")?;
        for (name, latency) in &self.0 {
            let speedup = self.0[0].1.median_us / latency.median_us;
            writeln!(f, "{name:<20}{:>12.0}{:>12.0}{speedup:>9.2}x", latency.median_us, latency.p99_us)?;
        }
        Ok(())
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, latency) in &self.0 {
            map.serialize_entry(name, latency)?;
        }
        map.end()
    }
}
