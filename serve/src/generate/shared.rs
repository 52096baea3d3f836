//! The queue that a writer and its workers share.

use std::time::{Duration, Instant};

use opara_models::engine::{Listener, Request};
use parking_lot::{Condvar, Mutex};

use super::delivery::Delivery;
use crate::batch::{Error, Pace, Queue, Result, TextMetrics};

/// A request that waits for a slot.
pub(super) struct Waiting {
    pub request: Request,
    pub delivery: Delivery,
}

/// The state of all threads of a writer.
pub(super) struct Shared {
    state: Mutex<State>,
    work: Condvar,
    limit: usize,
    pub metrics: TextMetrics,
}

struct State {
    queue: Queue<Waiting>,
    is_draining: bool,
    workers: usize,
    /// Of one worker, from the end of a text to that of the next.
    pace: Pace,
}

impl Shared {
    /// For so many workers, with at most `limit` requests that wait.
    pub fn new(workers: usize, limit: usize, metrics: TextMetrics) -> Self {
        let state = State { queue: Queue::new(1), is_draining: false, workers, pace: Pace::default() };
        Self { state: Mutex::new(state), work: Condvar::new(), limit, metrics }
    }

    /// Puts a request into the queue.
    pub fn push(&self, waiting: Waiting, client: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_draining {
            return Err(Error::Draining);
        }
        if state.workers == 0 {
            return Err(Error::NoDevice);
        }
        if state.queue.len() >= self.limit {
            state.queue.purge(|waiting| waiting.delivery.is_gone());
        }
        if state.queue.len() >= self.limit {
            return Err(Error::Full { retry_after: state.retry_after() });
        }
        let cost = waiting.request.prompt.len() + waiting.request.most;
        state.queue.push(0, client, cost, waiting);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Takes at most `free` requests, one for each free slot of the worker. An idle worker waits for at least one. `None` if the
    /// writer drains and nothing is left.
    pub fn take(&self, free: usize, is_idle: bool) -> Option<Vec<Waiting>> {
        let mut state = self.state.lock();
        loop {
            // Idle workers share what there is.
            let share = state.queue.len().div_ceil(state.workers.max(1));
            let mut taken = Vec::new();
            while taken.len() < free.min(share) {
                let Some(waiting) = state.queue.take_one(|waiting| waiting.delivery.is_gone()) else { break };
                taken.push(waiting);
            }
            match taken.is_empty() && is_idle {
                false => return Some(taken),
                true if state.is_draining => return None,
                true => self.work.wait(&mut state),
            }
        }
    }

    /// Whether requests wait.
    pub fn is_awaited(&self) -> bool {
        self.state.lock().queue.len() > 0
    }

    /// Notes how long a worker took until so many texts had ended.
    pub fn took(&self, texts: usize, time: Duration) {
        self.state.lock().pace.note(time.as_secs_f64() / texts as f64);
    }

    /// Ends a worker whose device is lost. Without another one, every request that waits fails.
    pub fn lose_worker(&self) {
        let mut state = self.state.lock();
        state.workers -= 1;
        if state.workers == 0 {
            state.queue.drain().for_each(|waiting| waiting.delivery.fail(Error::NoDevice));
        }
    }

    pub fn close(&self) {
        self.state.lock().is_draining = true;
        self.work.notify_all();
    }

    pub fn is_draining(&self) -> bool {
        self.state.lock().is_draining
    }

    pub fn workers(&self) -> usize {
        self.state.lock().workers
    }
}

impl State {
    /// The time that the queue takes.
    fn retry_after(&self) -> Duration {
        self.pace.retry_after(self.queue.len() as f64 / self.workers.max(1) as f64)
    }
}

/// Measures the time between the ends of texts.
pub(super) struct Ends {
    since: Instant,
}

impl Ends {
    pub fn new() -> Self {
        Self { since: Instant::now() }
    }

    /// So many texts have ended by now.
    pub fn note(&mut self, texts: usize, shared: &Shared) {
        if texts > 0 {
            shared.took(texts, self.since.elapsed());
            self.since = Instant::now();
        }
    }
}
