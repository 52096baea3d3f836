//! Measures implementations of one computation against each other on a GPU.

use candle::{CudaDevice, Result};

use crate::cuda::driver::{kernels, Event, Stream};
use crate::timing::wall_us;

/// Samples: how often each candidate that is left runs in one, and how many times slower than the best one it may be to stay. The
/// shortest sample counts: a slow host makes a sample longer, never shorter.
const SAMPLES: [(usize, f64); 4] = [(1, 2.), (3, 1.3), (3, 1.3), (3, 1.)];

/// The same where even the fastest one takes a millisecond, and far longer than the host needs to launch it: such runs differ less.
const LONG_SAMPLES: [(usize, f64); 2] = [(1, 1.3), (1, 1.)];
const MILLISECOND_US: f64 = 1_000.;

/// A sample runs a candidate as often as fits into this time, and once at least: event times are precise to half a microsecond, so that
/// long runs need no repetition.
const LONG_US: f64 = 300.;

/// An implementation that is measured.
struct Candidate<W> {
    implementation: W,
    /// Its time counts so many times.
    factor: f64,
    /// The least device time of a run so far, times the factor.
    weighted_us: f64,
    /// How long the host needed to launch it, the last time.
    launch_us: f64,
    /// Before and after its runs.
    events: [Event; 2],
}

/// The implementation with the least device time, multiplied by its factor, if one works. All that are left take their turns behind
/// one wait: loading kernels, and the host's launches, are what takes time here. If the driver fails, nothing works.
pub(super) fn fastest<W: Copy, R>(
    device: &CudaDevice,
    stream: &Stream,
    implementations: &[(W, f64)],
    run: &mut impl FnMut(W) -> Result<R>,
) -> Option<W> {
    let mut left = Vec::with_capacity(implementations.len());
    for &(implementation, factor) in implementations {
        // The first run loads the kernel. Libraries report only at run time that an algorithm does not support the operands.
        if run(implementation).map(drop).is_err() {
            continue;
        }
        let (Ok(start), Ok(end)) = (stream.event(true), stream.event(true)) else { continue };
        let mut candidate =
            Candidate { implementation, factor, weighted_us: f64::INFINITY, launch_us: 0., events: [start, end] };
        if candidate.run(stream, run, 1) {
            left.push(candidate);
        }
    }
    // These follow no wait, so each has taken as long as the device or the host, whichever is slower.
    left.iter_mut().for_each(|candidate| candidate.has_run(1));
    let mut best = least(&left);
    let is_long = best > MILLISECOND_US && left.iter().all(|candidate| best > 4. * candidate.launch_us);
    match is_long {
        true => left.retain(|candidate| candidate.weighted_us <= 2. * best),
        false => left.iter_mut().for_each(|candidate| candidate.weighted_us = f64::INFINITY),
    }
    for &(runs, slower) in if is_long { &LONG_SAMPLES[..] } else { &SAMPLES } {
        if left.len() < 2 {
            break;
        }
        sample(device, stream, &mut left, run, runs.min((LONG_US / best) as usize).max(1));
        best = least(&left);
        left.retain(|candidate| candidate.weighted_us.is_finite() && candidate.weighted_us <= slower * best);
    }
    left.first().map(|candidate| candidate.implementation)
}

/// The time of the fastest one.
fn least<W>(candidates: &[Candidate<W>]) -> f64 {
    candidates.iter().map(|candidate| candidate.weighted_us).fold(f64::INFINITY, f64::min)
}

impl<W: Copy> Candidate<W> {
    /// Launches so many runs between the events. Whether that succeeded.
    fn run<R>(&mut self, stream: &Stream, run: &mut impl FnMut(W) -> Result<R>, runs: usize) -> bool {
        let [start, end] = &self.events;
        let (is_launched, us) = wall_us(|| {
            stream.record(start).is_ok()
                && (0..runs).all(|_| run(self.implementation).is_ok())
                && stream.record(end).is_ok()
        });
        self.launch_us = us / runs as f64;
        is_launched
    }

    /// Waits for the runs that were launched last, and counts their time.
    fn has_run(&mut self, runs: usize) {
        let [start, end] = &self.events;
        let weighted = |us: f64| self.weighted_us.min(us / runs as f64 * self.factor);
        self.weighted_us = start.elapsed_us(end).map_or(f64::INFINITY, weighted);
    }
}

/// Measures `runs` runs of each candidate, one candidate after the other. A candidate that fails takes infinitely long.
fn sample<W: Copy, R>(
    device: &CudaDevice,
    stream: &Stream,
    mut candidates: &mut [Candidate<W>],
    run: &mut impl FnMut(W) -> Result<R>,
    runs: usize,
) {
    while !candidates.is_empty() {
        let (together, wait_us) = behind_one_wait(candidates, runs);
        let (some, rest) = candidates.split_at_mut(together);
        let waits = kernels::wait(device, wait_us as u64).is_ok();
        let are_launched: Vec<bool> =
            some.iter_mut().map(|candidate| candidate.run(stream, run, runs) && waits).collect();
        for (candidate, is_launched) in some.iter_mut().zip(are_launched) {
            match is_launched {
                true => candidate.has_run(runs),
                false => candidate.weighted_us = f64::INFINITY,
            }
        }
        candidates = rest;
    }
}

/// How many of the first candidates run behind one wait, and how long that keeps the GPU busy: for longer than the host needs to
/// launch them, so that the samples measure GPU time.
fn behind_one_wait<W>(candidates: &[Candidate<W>], runs: usize) -> (usize, f64) {
    /// If other threads hold the driver's locks, the host is slow, and a longer wait would also slow down the other threads.
    const LONGEST_US: f64 = 5_000.;
    let (mut together, mut wait_us) = (0, 100.);
    for candidate in candidates {
        let host_us = 2. * runs as f64 * candidate.launch_us;
        if together > 0 && wait_us + host_us > LONGEST_US {
            break;
        }
        (together, wait_us) = (together + 1, wait_us + host_us);
    }
    (together, wait_us.min(LONGEST_US))
}
