//! Start and end times of ops, as numbers, as an SVG, and as a file for trace viewers.

mod chrome;
#[cfg(feature = "svg")]
mod svg;

use serde::{Deserialize, Serialize};

use crate::trace::OpId;

/// The start and end of one op.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The op.
    pub op: OpId,
    /// The stream that it was launched on, counted from 0.
    pub stream: usize,
    /// Microseconds from the beginning of the pass to its start.
    pub start_us: f64,
    /// Microseconds from the beginning of the pass to its end.
    pub end_us: f64,
}

/// The simulated or measured times of the ops of one pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// One span per op, sorted by start.
    pub spans: Vec<Span>,
    /// Microseconds from the beginning of the pass to the end of its last op.
    pub total_us: f64,
    /// Device time of the same work if it used the whole device, in microseconds.
    pub busy_us: f64,
}

impl Timeline {
    /// Builds a timeline from spans. `shares` holds for each op the share of the device that it uses while it runs.
    ///
    /// # Complexity
    /// That of sorting the spans.
    pub fn new(mut spans: Vec<Span>, shares: &[f64]) -> Self {
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.op.cmp(&b.op)));
        let total_us = spans.iter().map(|span| span.end_us).fold(0., f64::max);
        let share = |span: &Span| shares.get(span.op).copied().unwrap_or(0.);
        let mut changes: Vec<(f64, f64)> =
            spans.iter().flat_map(|span| [(span.start_us, share(span)), (span.end_us, -share(span))]).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy_us, mut used, mut since) = (0., 0f64, 0.);
        for (at, change) in changes {
            busy_us += (at - since) * used.clamp(0., 1.);
            used += change;
            since = at;
        }
        Self { spans, total_us, busy_us }
    }

    /// The fraction of the multiprocessors' time that was in use, from 0 to 1.
    pub fn utilization(&self) -> f64 {
        if self.total_us > 0. {
            self.busy_us / self.total_us
        } else {
            0.
        }
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.spans.iter().map(|span| span.stream + 1).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
