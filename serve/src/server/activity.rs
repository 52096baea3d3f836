//! What a connection is doing, and until when it may: its stream looks at the time, its requests and answers report to it.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use axum_server::ConnectionShutdown;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::Place;
use crate::protocol::MessagePlaces;

use super::sending::Sending;

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For a request's head, and for taking a part of an answer.
    pub read: Duration,
    /// Between an answer and the next request.
    pub keep_alive: Duration,
}

/// What a connection is doing. Clones share it.
#[derive(Clone)]
pub(super) struct Activity {
    state: Arc<Mutex<State>>,
    times: Times,
}

struct State {
    /// The first bytes, as far as they tell the version.
    first: Vec<u8>,
    /// Requests whose heads were read and whose answers were not sent yet.
    requests: usize,
    /// Since when there is none.
    idle: Instant,
    /// Since when a head of HTTP/1 is being read. The first one is awaited from the beginning.
    head: Option<Instant>,
    /// Asks for an orderly end; known from the first request on.
    shutdown: Option<ConnectionShutdown>,
    /// When that was asked for.
    closing: Option<Instant>,
    answers: Vec<Weak<Sending<Held>>>,
    /// Of answers whose last bytes are with the connection.
    unsent: Vec<Place>,
    /// The connection's task.
    waker: Option<Waker>,
}

const PREFACE: &[u8] = b"PRI ";

impl State {
    fn is_http2(&self) -> bool {
        self.first == PREFACE
    }
}

/// What the time says of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing is due before this time.
    Until(Option<Instant>),
    /// The client took too long: the connection ends.
    End,
}

impl Activity {
    pub fn new(times: Times) -> Self {
        let now = Instant::now();
        let state = State {
            first: Vec::new(),
            requests: 0,
            idle: now,
            head: Some(now),
            shutdown: None,
            closing: None,
            answers: Vec::new(),
            unsent: Vec::new(),
            waker: None,
        };
        Self { state: Arc::new(Mutex::new(state)), times }
    }

    pub fn times(&self) -> Times {
        self.times
    }

    /// The client sent these bytes.
    pub fn read(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        let missing = PREFACE.len() - state.first.len();
        state.first.extend(bytes.iter().take(missing));
        if state.is_http2() {
            state.head = None;
        } else if state.requests == 0 && !bytes.is_empty() {
            state.head.get_or_insert_with(Instant::now);
        }
    }

    /// All that was written is on its way.
    pub fn flushed(&self) {
        let places = std::mem::take(&mut self.state.lock().unsent);
        drop(places);
    }

    /// A head was read.
    pub fn begin(&self, shutdown: Option<ConnectionShutdown>) -> Underway {
        let mut state = self.state.lock();
        state.requests += 1;
        state.head = None;
        state.shutdown = state.shutdown.take().or(shutdown);
        Underway(Arc::new(Ending(self.clone())))
    }

    /// An answer is sent from now on.
    pub fn send(&self, answer: &Arc<Sending<Held>>) {
        self.state.lock().answers.push(Arc::downgrade(answer));
    }

    /// Keeps a place until all that was written is on its way.
    pub fn keep(&self, place: Place) {
        self.state.lock().unsent.push(place);
    }

    /// Wakes the connection's task where an earlier time may have become due.
    pub fn wake(&self) {
        if let Some(waker) = self.state.lock().waker.take() {
            waker.wake();
        }
    }

    /// Looks at the time: cuts answers that their clients do not take, and asks an idle connection to end.
    pub fn check(&self, now: Instant, waker: &Waker) -> Verdict {
        let Times { read, keep_alive } = self.times;
        let mut state = self.state.lock();
        state.waker = Some(waker.clone());
        state.answers.retain(|answer| answer.strong_count() > 0);
        let answers: Vec<_> = state.answers.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        let stalled = answers.iter().filter_map(|answer| answer.check(now, read)).min();
        // Answers that are dropped here look at the state themselves.
        drop(answers);

        let mut state = self.state.lock();
        let due = match (state.requests, state.closing, state.head) {
            (_, Some(since), _) if state.requests == 0 => since + read,
            (1.., ..) => return Verdict::Until(stalled),
            (_, _, Some(since)) => since + read,
            _ => state.idle + keep_alive,
        };
        if now < due {
            return Verdict::Until(stalled.into_iter().chain([due]).min());
        }
        match &state.shutdown {
            Some(shutdown) if state.head.is_none() && state.closing.is_none() => {
                shutdown.graceful_shutdown();
                state.closing = Some(now);
                Verdict::Until(stalled.into_iter().chain([now + read]).min())
            }
            _ => Verdict::End,
        }
    }
}

/// A request from its head to the end of its answer.
#[derive(Clone)]
pub(super) struct Underway(Arc<Ending>);

impl Underway {
    pub fn activity(&self) -> &Activity {
        &self.0 .0
    }
}

struct Ending(Activity);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.requests -= 1;
        if state.requests == 0 {
            let now = Instant::now();
            state.idle = now;
            state.closing = state.closing.map(|_| now);
        }
        drop(state);
        self.0.wake();
    }
}

/// What an answer holds until it is sent.
#[derive(Default)]
pub(super) struct Held {
    pub place: Place,
    /// Of a stream of messages.
    pub messages: Option<Arc<MessagePlaces>>,
    /// Without it nobody looks at the time.
    pub underway: Option<Underway>,
}
