//! Benchmarks schedules against each other.

use crate::latency::Latency;
use crate::schedule::Schedule;
use crate::Error;

/// Runs schedules, on a device or simulated.
pub trait Bench {
    /// A schedule, ready to run.
    type Runner;
    /// The error if a schedule cannot be prepared or run.
    type Error: From<Error>;

    /// Prepares a schedule.
    fn runner(&mut self, schedule: &Schedule) -> Result<Self::Runner, Self::Error>;

    /// Microseconds of one run.
    fn run(&mut self, runner: &Self::Runner) -> Result<f64, Self::Error>;
}

/// A schedule in a benchmark.
pub struct Contestant<R> {
    /// A description of the schedule.
    pub name: String,
    /// The schedule.
    pub schedule: Schedule,
    /// The schedule, ready to run.
    pub runner: R,
    /// Microseconds of its runs.
    pub samples: Vec<f64>,
}

impl<R> Contestant<R> {
    /// Prepares a schedule.
    ///
    /// # Errors
    /// An error of the bench.
    pub fn new<T: Bench<Runner = R>>(name: String, schedule: Schedule, bench: &mut T) -> Result<Self, T::Error> {
        let runner = bench.runner(&schedule)?;
        Ok(Self { name, schedule, runner, samples: Vec::new() })
    }

    /// The median in microseconds; infinite before the first run.
    pub fn median(&self) -> f64 {
        if self.samples.is_empty() {
            f64::INFINITY
        } else {
            Latency::of(self.samples.clone()).median_us
        }
    }
}

/// Runs each contestant `rounds` more times. Runs are interleaved, and every round starts with another contestant,
/// since the first run of a round finds the caches in another state.
///
/// # Errors
/// An error of the bench.
pub fn benchmark<T: Bench>(
    bench: &mut T,
    contestants: &mut [Contestant<T::Runner>],
    rounds: usize,
) -> Result<(), T::Error> {
    for contestant in contestants.iter() {
        bench.run(&contestant.runner)?;
    }
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            let contestant = (round + turn) % contestants.len();
            let us = bench.run(&contestants[contestant].runner)?;
            contestants[contestant].samples.push(us);
        }
    }
    Ok(())
}
