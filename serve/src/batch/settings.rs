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
    /// Where batches are counted.
    pub metrics: Metrics,
}

impl Default for Settings {
    fn default() -> Self {
        Self { queue_rows: 1_024, in_flight: 1, metrics: Metrics::default() }
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

    /// Sets [`metrics`](Self::metrics).
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }
}
