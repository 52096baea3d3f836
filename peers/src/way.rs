//! One way to run a model: ours, or a peer's.

use std::time::Duration;

use anyhow::Result;
use candle::Tensor;
use opara_peers::results::{Kernel, Series};

/// One way to run the model of a cell on its input, ready to run.
pub trait Way {
    /// Calls it `calls` times after one call that does not count, and if `flush`, overwrites the L2 cache before each.
    ///
    /// # Errors
    /// Those of the call.
    fn turn(&mut self, calls: usize, flush: bool) -> Result<Series>;

    /// Calls it over and over for this long.
    ///
    /// # Errors
    /// Those of the call.
    fn spin(&mut self, time: Duration) -> Result<()>;

    /// The time of one call by kernel.
    ///
    /// # Errors
    /// No profiler, or a way that has no kernels to tell apart.
    fn kernels(&mut self) -> Result<Vec<Kernel>>;
}

/// A way that is ready, and what it took.
pub struct Ready {
    pub way: Box<dyn Way>,
    /// Of one call.
    pub output: Tensor,
    /// Seconds until it was ready, one call included.
    pub setup_s: f64,
    /// Most device memory meanwhile, beyond what was in use before.
    pub peak_bytes: Option<u64>,
    /// What it says of itself.
    pub note: Option<String>,
}
