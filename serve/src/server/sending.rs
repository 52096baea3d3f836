//! A body on its way to a client: it is cut where the client does not take it, and then lets go of what it holds.

use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::{Failure, Kind};

/// Bytes that are given to the connection at a time.
const PART: usize = 16 << 10;

/// The body, and what is held until it is sent.
pub(super) struct Sending<H>(Mutex<State<H>>);

struct State<H> {
    /// None once it was cut.
    body: Option<Body>,
    /// What was read of the body and not given to the connection.
    rest: Bytes,
    held: H,
    /// Since when the client is to take what it was given.
    stalled: Option<Instant>,
}

impl<H: Default> Sending<H> {
    pub fn new(body: Body, held: H) -> Self {
        let (body, rest, stalled) = (Some(body), Bytes::new(), Some(Instant::now()));
        Self(Mutex::new(State { body, rest, held, stalled }))
    }

    /// Cuts the answer where the client has not taken a part of it for so long; says until when it may.
    pub fn check(&self, now: Instant, time: Duration) -> Option<Instant> {
        let mut state = self.0.lock();
        let due = state.stalled? + time;
        if now < due {
            return Some(due);
        }
        state.stalled = None;
        let cut = (state.body.take(), std::mem::take(&mut state.held));
        state.rest = Bytes::new();
        drop(state);
        drop(cut);
        None
    }

    /// The next part; `before` sees what is held each time that the body is asked for more.
    pub fn poll(
        &self,
        cx: &mut Context<'_>,
        parts_last_byte: bool,
        before: impl FnOnce(&H),
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.0.lock();
        let state = &mut *state;
        let Some(body) = &mut state.body else {
            let slow = Failure::new(Kind::Deadline, "the client took no part of the answer for too long");
            return Poll::Ready(Some(Err(axum::Error::new(slow))));
        };
        state.stalled = None;
        if state.rest.is_empty() {
            before(&state.held);
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => state.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        state.stalled = Some(Instant::now());
        let last = if parts_last_byte { state.rest.len().saturating_sub(1).max(1) } else { PART };
        let part = state.rest.split_to(state.rest.len().min(last).min(PART));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    /// Gives back what is held.
    pub fn end(&self) -> H {
        std::mem::take(&mut self.0.lock().held)
    }
}
