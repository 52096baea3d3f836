//! A contestant that is ready to run: this library's or a peer's.

use std::time::Duration;

use anyhow::Result;
use candle::Tensor;
use opara_peers::results::{Kernel, Series};

/// The model of a cell, ready to run on its input.
pub trait Way {
    /// Makes `calls` measured calls after one warm-up call. If `flush`, overwrites the L2 cache before each.
    ///
    /// # Errors
    /// An error of the call.
    fn turn(&mut self, calls: usize, flush: bool) -> Result<Series>;

    /// Calls it repeatedly for this long.
    ///
    /// # Errors
    /// An error of the call.
    fn spin(&mut self, time: Duration) -> Result<()>;

    /// The time of one call by kernel.
    ///
    /// # Errors
    /// No profiler, or a contestant whose kernels cannot be timed.
    fn kernels(&mut self) -> Result<Vec<Kernel>>;
}

/// A prepared contestant, and the cost of its preparation.
pub struct Ready {
    pub way: Box<dyn Way>,
    /// The output of one call.
    pub output: Tensor,
    /// Seconds until it was ready, including one call.
    pub setup_s: f64,
    /// Peak device memory during preparation, beyond what was in use before.
    pub peak_bytes: Option<u64>,
    /// A remark.
    pub note: Option<String>,
}
