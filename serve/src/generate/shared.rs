//! The queue that a writer and its workers share.

use std::time::{Duration, Instant};

use opara_models::engine::{Listener, Request};
use parking_lot::{Condvar, Mutex};

use super::delivery::Delivery;
use crate::batch::{Error, Pace, Queue, Result, TextMetrics};

/// How long an idle worker waits for a further request, and in all, where as many are likely to come as texts have just ended: clients send
/// their next requests one after another, and prompts that are read together take hardly longer than one.
const QUIET: Duration = Duration::from_millis(1);
const GATHERING: Duration = Duration::from_millis(10);
/// How long after texts have ended.
const RECENT: Duration = Duration::from_millis(100);

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
    gathering: Gathering,
}

/// Requests that come together.
struct Gathering {
    /// Texts that ended together, and when.
    ended: (usize, Instant),
    /// When the first and the last request came of those that wait.
    came: [Instant; 2],
}

impl Gathering {
    fn new(now: Instant) -> Self {
        Self { ended: (0, now), came: [now; 2] }
    }

    fn end(&mut self, texts: usize, now: Instant) {
        self.ended = (texts, now);
    }

    fn come(&mut self, is_first: bool, now: Instant) {
        self.came = [if is_first { now } else { self.came[0] }, now];
    }

    /// How long to wait for more requests than these, of which so many are taken at most; `None` if no longer.
    fn pause(&self, waiting: usize, most: usize, now: Instant) -> Option<Duration> {
        let (ended, at) = self.ended;
        let since = |then: Instant| now.saturating_duration_since(then);
        if waiting >= ended.min(most) || since(at) > RECENT {
            return None;
        }
        let left = QUIET.checked_sub(since(self.came[1]))?.min(GATHERING.checked_sub(since(self.came[0]))?);
        (!left.is_zero()).then_some(left)
    }
}

impl Shared {
    /// For so many workers, with at most `limit` requests that wait.
    pub fn new(workers: usize, limit: usize, metrics: TextMetrics) -> Self {
        let gathering = Gathering::new(Instant::now());
        let state = State { queue: Queue::new(1), is_draining: false, workers, pace: Pace::default(), gathering };
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
        let is_first = state.queue.len() == 0;
        state.gathering.come(is_first, Instant::now());
        state.queue.push(0, client, cost, waiting);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Takes at most `free` requests, one for each free slot of the worker. An idle worker waits for at least one, and for those that come
    /// with it, up to as many as it reads together. `None` if the writer drains and nothing is left.
    pub fn take(&self, free: usize, idle: Option<usize>) -> Option<Vec<Waiting>> {
        let mut state = self.state.lock();
        loop {
            let waiting = state.queue.len();
            let gathers = idle.filter(|_| waiting > 0 && !state.is_draining);
            let pause = |together| state.gathering.pause(waiting, free.min(together), Instant::now());
            if let Some(pause) = gathers.and_then(pause) {
                self.work.wait_for(&mut state, pause);
                continue;
            }
            // Idle workers share what there is.
            let share = state.queue.len().div_ceil(state.workers.max(1));
            let mut taken = Vec::new();
            while taken.len() < free.min(share) {
                let Some(waiting) = state.queue.take_one(|waiting| waiting.delivery.is_gone()) else { break };
                taken.push(waiting);
            }
            match taken.is_empty() && idle.is_some() {
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
        state.pace.note(time.as_secs_f64() / texts as f64);
        state.gathering.end(texts, Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_are_waited_for_as_texts_ended_while_they_come() {
        let start = Instant::now();
        let at = |us: u64| start + Duration::from_micros(us);
        let mut of = Gathering::new(start);
        of.come(true, at(0));
        assert_eq!(of.pause(1, 8, at(0)), None, "no text has ended");
        of.end(1, at(0));
        assert_eq!(of.pause(1, 8, at(0)), None, "the only client is back");
        of.end(64, at(0));
        of.come(true, at(500));
        assert_eq!(of.pause(1, 256, at(500)), Some(QUIET));
        assert_eq!(of.pause(1, 256, at(1500)), None, "no other one comes");
        of.come(false, at(1400));
        assert_eq!(of.pause(2, 256, at(1500)), Some(Duration::from_micros(900)));
        assert_eq!(of.pause(64, 256, at(1500)), None, "all are back");
        assert_eq!(of.pause(8, 8, at(1500)), None, "no more are taken");
        of.come(false, at(10_400));
        assert_eq!(of.pause(3, 256, at(10_400)), Some(Duration::from_micros(100)), "not for longer than ten");
        assert_eq!(of.pause(3, 256, at(10_500)), None);
        of.come(true, at(200_000));
        assert_eq!(of.pause(1, 256, at(200_000)), None, "they ended long ago");
    }
}
