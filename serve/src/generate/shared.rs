//! What a writer and its workers share.

use std::time::{Duration, Instant};

use opara_models::decoder::{Listener, Request};
use parking_lot::{Condvar, Mutex};

use super::delivery::Delivery;
use crate::batch::{Error, Queue, Result, TextMetrics};

/// A request that waits for a slot.
pub(super) struct Waiting {
    pub request: Request,
    pub delivery: Delivery,
}

/// What the threads share.
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
    /// Seconds between the ends of two texts of one worker, of late.
    seconds_a_text: f64,
}

impl Shared {
    /// For so many workers, with at most `limit` requests that wait.
    pub fn new(workers: usize, limit: usize, metrics: TextMetrics) -> Self {
        let state = State { queue: Queue::new(1), is_draining: false, workers, seconds_a_text: 0. };
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
        let cost = (waiting.request.prompt.len() + waiting.request.most) as u64;
        state.queue.push(0, client, cost, waiting);
        self.metrics.waiting.set(state.queue.len() as i64);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Requests for so many free slots: none may be waiting where the worker has others to write, else at least one. `None` if the
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
            self.metrics.waiting.set(state.queue.len() as i64);
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
        let mut state = self.state.lock();
        let latest = time.as_secs_f64() / texts as f64;
        // An eighth of the latest, so that some ten texts decide.
        state.seconds_a_text += (latest - state.seconds_a_text) / if state.seconds_a_text > 0. { 8. } else { 1. };
    }

    /// Ends a worker whose device is lost. Without another one, every request that waits fails.
    pub fn lose_worker(&self) {
        let mut state = self.state.lock();
        state.workers -= 1;
        if state.workers == 0 {
            state.queue.drain().for_each(|waiting| waiting.delivery.fail(Error::NoDevice));
            self.metrics.waiting.set(0);
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
    /// The time that the queue takes, in whole seconds, from 1 to 60.
    fn retry_after(&self) -> Duration {
        let seconds = self.seconds_a_text * self.queue.len() as f64 / self.workers.max(1) as f64;
        Duration::from_secs(seconds.ceil().clamp(1., 60.) as u64)
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
