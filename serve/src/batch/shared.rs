//! What a batcher and its workers share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::busy::Busy;
use super::call::Call;
use super::pace::Pace;
use super::queue::Queue;
use super::settings::Settings;
use super::{Bucket, Buckets, Engine, EngineError, Error};

/// A row that waits.
pub(super) struct Waiting<E: Engine> {
    pub row: E::Row,
    pub lane: usize,
    /// Tokens that it takes in a batch.
    pub cost: usize,
    /// Which row of its request.
    pub index: usize,
    pub call: Arc<Call<E::Answer>>,
    pub since: Instant,
    /// Whether a device was lost on it.
    pub is_retried: bool,
}

/// What the threads share.
pub(super) struct Shared<E: Engine> {
    pub engines: Vec<E>,
    /// One an engine.
    pub busy: Vec<Busy>,
    pub buckets: Buckets,
    pub settings: Settings,
    pub state: Mutex<State<E>>,
    pub work: Condvar,
}

pub(super) struct State<E: Engine> {
    pub queue: Queue<Waiting<E>>,
    pub is_draining: bool,
    pub workers: usize,
    /// Of a row in a batch.
    pub pace: Pace,
}

impl<E: Engine> Shared<E> {
    /// The next batch, once there is one; `None` if the batcher drains and nothing is left.
    pub fn next(&self) -> Option<(Bucket, Vec<Waiting<E>>)> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let batch = state.queue.take(&self.buckets, |waiting| waiting.call.is_over(now));
            self.settings.metrics.queue.set(state.queue.len() as i64);
            match batch {
                Some(batch) => return Some(batch),
                None if state.is_draining => return None,
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Notes how long a batch took.
    pub fn took(&self, rows: usize, time: Duration) {
        let mut state = self.state.lock();
        let seconds = time.as_secs_f64() / (rows * state.workers.max(1)) as f64;
        state.pace.note(seconds);
    }

    /// Ends a worker whose device is lost. Its rows go to another device, once. Without one, every row that waits fails.
    pub fn lose_worker(&self, rows: Vec<Waiting<E>>, error: &EngineError) {
        let mut state = self.state.lock();
        state.workers -= 1;
        self.settings.metrics.workers.set(state.workers as i64);
        for waiting in rows {
            match state.workers > 0 && !waiting.is_retried {
                true => {
                    state.queue.push_front(waiting.lane, waiting.cost, Waiting { is_retried: true, ..waiting });
                }
                false => waiting.call.fail(Error::Engine(error.clone())),
            }
        }
        if state.workers == 0 {
            state.queue.drain().for_each(|waiting| waiting.call.fail(Error::NoDevice));
        }
        drop(state);
        self.work.notify_all();
    }
}

impl<E: Engine> State<E> {
    /// The time that the queue takes.
    pub fn retry_after(&self) -> Duration {
        self.pace.retry_after(self.queue.len() as f64)
    }
}
