//! The host's clock, and what one call takes by it and by the device's.

use std::time::Instant;

/// One call, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Between two events around it on the device's stream; wall time on the CPU.
    pub gpu_us: f64,
    /// Until its work was done, on the host's clock.
    pub wall_us: f64,
    /// Until it returned.
    pub host_us: f64,
}

/// The result of `f` and its wall time in microseconds.
pub(crate) fn wall_us<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = f();
    (result, micros_since(start))
}

/// Microseconds since `start`.
pub(crate) fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
