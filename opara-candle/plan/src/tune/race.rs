//! Schedules that run against each other.

use crate::latency::Latency;
use crate::schedule::Schedule;
use crate::Error;

/// Where schedules run.
pub trait Track {
    /// A schedule, ready to run.
    type Runner;
    /// Why a schedule cannot be made ready or run.
    type Error: From<Error>;

    /// Makes a schedule ready.
    fn runner(&mut self, schedule: &Schedule) -> Result<Self::Runner, Self::Error>;

    /// Microseconds of one run.
    fn run(&mut self, runner: &Self::Runner) -> Result<f64, Self::Error>;
}

/// A schedule in a race.
pub struct Contestant<R> {
    /// What the schedule is, in words.
    pub name: String,
    /// The schedule.
    pub schedule: Schedule,
    /// What the track made of it.
    pub runner: R,
    /// Microseconds of its runs.
    pub samples: Vec<f64>,
}

impl<R> Contestant<R> {
    /// A schedule that is ready to run.
    ///
    /// # Errors
    /// Those of the track.
    pub fn new<T: Track<Runner = R>>(name: String, schedule: Schedule, track: &mut T) -> Result<Self, T::Error> {
        let runner = track.runner(&schedule)?;
        Ok(Self { name, schedule, runner, samples: Vec::new() })
    }

    /// Microseconds; infinite before the first run.
    pub fn median(&self) -> f64 {
        if self.samples.is_empty() {
            f64::INFINITY
        } else {
            Latency::of(self.samples.clone()).median_us
        }
    }
}

/// Lets all run so many times more. They take turns, and every round begins with another one: what runs first in a round
/// finds other caches than what runs after it.
///
/// # Errors
/// Those of the track.
pub fn race<T: Track>(track: &mut T, field: &mut [Contestant<T::Runner>], rounds: usize) -> Result<(), T::Error> {
    for contestant in field.iter() {
        track.run(&contestant.runner)?;
    }
    for round in 0..rounds {
        for turn in 0..field.len() {
            let contestant = (round + turn) % field.len();
            let us = track.run(&field[contestant].runner)?;
            field[contestant].samples.push(us);
        }
    }
    Ok(())
}
