//! When each op ran: as numbers, as a picture, and as a file for trace viewers.

mod chrome;
#[cfg(feature = "svg")]
mod picture;

use serde::{Deserialize, Serialize};

use crate::trace::OpId;

/// When one op ran.
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

/// When the ops of one pass ran, simulated or measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// One for each op, by start.
    pub spans: Vec<Span>,
    /// Microseconds from the beginning of the pass to the end of its last op.
    pub total_us: f64,
    /// Microseconds for which the whole device would have been in use for the same work.
    pub busy_us: f64,
}

impl Timeline {
    /// A timeline of these spans. `shares` holds for each op the share of the device that it takes while it runs.
    ///
    /// # Complexity
    /// As that of sorting the spans.
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

    /// Share of the multiprocessors' time that was in use, from 0 to 1.
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
