//! How long a device has had batches to run.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::metrics::DeviceMetrics;

/// Counts the time in which at least one batch of a device is being executed. Workers of one device overlap, so that the sum of
/// their times says nothing of it.
#[derive(Debug)]
pub(super) struct Busy {
    metrics: DeviceMetrics,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    batches: usize,
    /// Up to when time is counted.
    counted: Instant,
}

impl Busy {
    pub fn new(metrics: DeviceMetrics) -> Self {
        Self { metrics, state: Mutex::new(State { batches: 0, counted: Instant::now() }) }
    }

    /// A batch begins; tells how many run now.
    pub fn begin(&self, now: Instant) -> usize {
        self.change(now, |batches| batches + 1)
    }

    /// A batch has ended, which takes the device so long by itself, if that is known.
    pub fn end(&self, now: Instant, device_time: Option<Duration>) {
        self.change(now, |batches| batches - 1);
        if let Some(time) = device_time {
            self.metrics.own.inc_by(time.as_secs_f64());
        }
    }

    /// Counts at each change, and not when the device becomes idle, which under load it never does.
    fn change(&self, now: Instant, batches: impl FnOnce(usize) -> usize) -> usize {
        let mut state = self.state.lock();
        if state.batches > 0 {
            self.metrics.busy.inc_by(now.saturating_duration_since(state.counted).as_secs_f64());
        }
        // Two workers may come in another order than they read the clock.
        *state = State { batches: batches(state.batches), counted: now.max(state.counted) };
        state.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Metrics;

    #[test]
    fn time_of_batches_that_overlap_counts_once() {
        let metrics = Metrics::default();
        let busy = Busy::new(metrics.device(0));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let counted = || (busy.metrics.busy.get(), busy.metrics.own.get());
        busy.begin(at(1));
        busy.begin(at(3));
        assert_eq!(counted(), (2., 0.), "while a batch runs, too");
        busy.end(at(4), Some(Duration::from_secs(2)));
        busy.end(at(7), None);
        assert_eq!(counted(), (6., 2.));
        busy.begin(at(20));
        busy.end(at(21), Some(Duration::from_secs(1)));
        assert_eq!(counted(), (7., 3.), "nothing ran from 7 to 20");
    }
}
