//! Latency of a call, summarized from samples.

use serde::Serialize;

/// Latency of one call in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// The median.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The minimum.
    pub min_us: f64,
}

impl Latency {
    /// Summarizes samples in microseconds; all zero if there are none.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at =
            |share: f64| samples.get(((samples.len() as f64 * share) as usize).min(samples.len().saturating_sub(1)));
        let at = |share: f64| at(share).copied().unwrap_or(0.);
        Self { median_us: at(0.5), p99_us: at(0.99), min_us: at(0.) }
    }
}

/// The times of one call in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Device time between two events on the stream, before and after the call; wall time on the CPU.
    pub gpu_us: f64,
    /// Host time until the call's work is complete.
    pub wall_us: f64,
    /// Host time until the call returns.
    pub host_us: f64,
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
