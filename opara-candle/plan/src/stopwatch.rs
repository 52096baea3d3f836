//! Times of the stages of building.

use std::collections::BTreeMap;
use std::time::Instant;

/// Milliseconds per stage of building.
#[derive(Default)]
pub struct StageTimes(pub BTreeMap<&'static str, f64>);

impl StageTimes {
    /// Runs `f` and adds its time to `stage`.
    pub fn time<T>(&mut self, stage: &'static str, f: impl FnOnce() -> T) -> T {
        let (result, us) = wall_us(f);
        self.add(stage, us / 1e3);
        result
    }

    /// Adds to the time of a stage.
    pub fn add(&mut self, stage: &'static str, ms: f64) {
        *self.0.entry(stage).or_default() += ms;
    }

    /// Moves a part of one stage's time to another stage.
    pub fn move_ms(&mut self, from: &'static str, to: &'static str, ms: f64) {
        self.add(from, -ms);
        self.add(to, ms);
    }
}

/// Returns the result of `f` and its wall time in microseconds.
pub fn wall_us<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = f();
    (result, micros_since(start))
}

/// Microseconds since `start`.
pub fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
