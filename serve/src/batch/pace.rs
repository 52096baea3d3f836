//! How long one piece of work has taken of late.

use std::time::Duration;

/// A running mean of the seconds that one row or text takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    seconds: f64,
}

impl Pace {
    /// Notes a measurement, with a weight of an eighth, so that about the last ten decide.
    pub fn note(&mut self, seconds: f64) {
        self.seconds += (seconds - self.seconds) / if self.seconds > 0. { 8. } else { 1. };
    }

    /// The time until a queue of this length is empty, in whole seconds from 1 to 60.
    pub fn retry_after(self, length: f64) -> Duration {
        Duration::from_secs((self.seconds * length).ceil().clamp(1., 60.) as u64)
    }
}
