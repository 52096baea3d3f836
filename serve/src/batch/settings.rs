//! Settings of a batcher.

use super::Metrics;

/// What a [`Batcher`](super::Batcher) is told beside its engines and buckets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Rows that may wait. Default: 1,024.
    pub queue_rows: usize,
    /// Threads of each engine. With two, a GPU runs one batch while the other's answers are read and its rows are padded.
    /// Default: 1.
    pub in_flight: usize,
    /// Whether workers share the process's cores, for engines on a CPU: a batch has all cores while no other one runs or waits,
    /// and otherwise its worker's share of them. Default: `false`.
    pub share_cores: bool,
    /// Where batches are counted.
    pub metrics: Metrics,
}

impl Default for Settings {
    fn default() -> Self {
        Self { queue_rows: 1_024, in_flight: 1, share_cores: false, metrics: Metrics::default() }
    }
}

impl Settings {
    /// Sets [`queue_rows`](Self::queue_rows).
    pub fn queue_rows(mut self, rows: usize) -> Self {
        self.queue_rows = rows;
        self
    }

    /// Sets [`in_flight`](Self::in_flight), at least 1.
    pub fn in_flight(mut self, threads: usize) -> Self {
        self.in_flight = threads.max(1);
        self
    }

    /// Sets [`share_cores`](Self::share_cores).
    pub fn share_cores(mut self, share: bool) -> Self {
        self.share_cores = share;
        self
    }

    /// Sets [`metrics`](Self::metrics).
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }
}
