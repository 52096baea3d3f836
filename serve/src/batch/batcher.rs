//! The batcher: a queue and the threads that empty it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::busy::Busy;
use super::call::{Call, Pending};
use super::pace::Pace;
use super::queue::Queue;
use super::settings::Settings;
use super::shared::{Shared, State, Waiting};
use super::{worker, Bucket, Buckets, Engine, EngineError, Error, Health, Result};

/// Rows that are asked for together.
#[derive(Debug, Clone)]
pub struct Job<R> {
    rows: Vec<R>,
    client: u64,
    deadline: Option<Instant>,
}

impl<R> Job<R> {
    /// These rows.
    pub fn of(rows: impl IntoIterator<Item = R>) -> Self {
        Self { rows: rows.into_iter().collect(), client: 0, deadline: None }
    }

    /// Whose they are: clients take turns. Default: 0.
    pub fn client(mut self, client: u64) -> Self {
        self.client = client;
        self
    }

    /// When the answer is worth nothing any more. Default: never.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Batches rows of many requests; see the [module](super).
///
/// Dropping it ends its threads once all requests that it has taken are answered. [`drain`](Self::drain) waits for that.
pub struct Batcher<E: Engine> {
    shared: Arc<Shared<E>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<E: Engine> Batcher<E> {
    /// Starts the workers: [`Settings::in_flight`] threads for each engine, of which there is one a device.
    pub fn start(engines: impl IntoIterator<Item = E>, buckets: Buckets, settings: Settings) -> Self {
        let engines: Vec<E> = engines.into_iter().collect();
        let workers = engines.len() * settings.in_flight;
        let state = State { queue: Queue::new(buckets.lanes()), is_draining: false, workers, pace: Pace::default() };
        settings.metrics.workers.set(workers as i64);
        let busy = (0..engines.len()).map(|engine| Busy::new(settings.metrics.device(engine))).collect();
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { engines, busy, buckets, settings, state, work: Condvar::new() });
        let start = |worker: usize| {
            let shared = shared.clone();
            std::thread::spawn(move || worker::run(&shared, worker / shared.settings.in_flight))
        };
        let threads = Mutex::new((0..workers).map(start).collect());
        Self { shared, threads }
    }

    /// Builds every bucket on every engine, and tells `progress` how many of how many are done. Before that, the first batch
    /// of a bucket takes as long as its building.
    ///
    /// # Errors
    /// The engine's.
    pub fn warm_up(&self, mut progress: impl FnMut(Bucket, usize, usize)) -> Result<(), EngineError> {
        let Shared { engines, buckets, .. } = &*self.shared;
        let all = engines.len() * buckets.len();
        let pairs = engines.iter().flat_map(|engine| buckets.iter().map(move |bucket| (engine, bucket)));
        for (done, (engine, bucket)) in pairs.enumerate() {
            engine.prepare(bucket)?;
            progress(bucket, done + 1, all);
        }
        Ok(())
    }

    /// Puts rows into the queue: all of them, or none.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TooManyRows`], [`Error::Full`], [`Error::Draining`] and [`Error::NoDevice`], at once; all
    /// others come from [`Pending`].
    pub fn submit(&self, job: Job<E::Row>) -> Result<Pending<E::Answer>> {
        let Shared { engines, buckets, settings, .. } = &*self.shared;
        let Some(engine) = engines.first() else { return Err(Error::NoDevice) };
        if job.rows.len() > settings.queue_rows {
            return Err(Error::TooManyRows { rows: job.rows.len(), limit: settings.queue_rows });
        }
        let lane = |(row, content): (usize, &E::Row)| {
            let length = engine.length(content);
            buckets.lane(length).ok_or(Error::TooLong { row, length, limit: buckets.longest() })
        };
        let lanes = job.rows.iter().enumerate().map(lane).collect::<Result<Vec<_>>>()?;
        let (call, pending) = Call::new(job.rows.len(), job.deadline);
        let (call, since) = (Arc::new(call), Instant::now());

        let mut state = self.shared.state.lock();
        if state.is_draining {
            return Err(Error::Draining);
        }
        if state.workers == 0 {
            return Err(Error::NoDevice);
        }
        if state.queue.len() + job.rows.len() > settings.queue_rows {
            state.queue.purge(|waiting| waiting.call.is_over(since));
        }
        if state.queue.len() + job.rows.len() > settings.queue_rows {
            return Err(Error::Full { retry_after: state.retry_after() });
        }
        let is_single = job.rows.len() == 1;
        for (index, (row, lane)) in job.rows.into_iter().zip(lanes).enumerate() {
            let cost = buckets.taken(engine.length(&row));
            let waiting = Waiting { row, lane, cost, index, call: call.clone(), since, is_retried: false };
            state.queue.push(lane, job.client, cost, waiting);
        }
        settings.metrics.queue.set(state.queue.len() as i64);
        drop(state);
        // One row is one batch. Workers that wake for nothing take a core from it.
        match is_single {
            true => _ = self.shared.work.notify_one(),
            false => _ = self.shared.work.notify_all(),
        }
        Ok(pending)
    }

    /// Whether requests are taken.
    pub fn is_ready(&self) -> bool {
        let state = self.shared.state.lock();
        !state.is_draining && state.workers > 0
    }

    /// Whether the device of every engine is lost.
    pub fn is_lost(&self) -> bool {
        self.shared.state.lock().workers == 0
    }

    /// Rows that wait for a worker.
    pub fn queued(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// The shapes of its batches.
    pub fn buckets(&self) -> &Buckets {
        &self.shared.buckets
    }

    /// What its engines say of themselves, added up.
    pub fn health(&self) -> Health {
        let mut sum = Health::default();
        for health in self.shared.engines.iter().map(|engine| engine.health(&self.shared.buckets)) {
            sum.built += health.built;
            sum.eager.extend(health.eager);
            sum.rechecks += health.rechecks;
            sum.mismatches += health.mismatches;
        }
        sum
    }

    /// Takes no more requests, answers those that it has taken, and ends its threads. Blocks until that is done.
    pub fn drain(&self) {
        self.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A worker catches panics of its engine.
            let _ = thread.join();
        }
    }

    /// Takes no more requests; threads end once the queue is empty.
    fn close(&self) {
        self.shared.state.lock().is_draining = true;
        self.shared.work.notify_all();
    }
}

impl<E: Engine> Drop for Batcher<E> {
    fn drop(&mut self) {
        self.close();
    }
}
