//! The body of an answer: it holds the request's place until it is sent, and is cut where its client does not take it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::Version;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::{Failure, Kind, Place};
use crate::protocol::MessagePlaces;

use super::activity::Underway;

/// Bytes that are given to the connection at a time.
const PART: usize = 16 << 10;

/// What an answer holds until it is sent.
#[derive(Default)]
pub(super) struct Held {
    pub place: Place,
    /// Of a stream of messages.
    pub messages: Option<Arc<MessagePlaces>>,
    /// Without it nobody looks at the time.
    pub underway: Option<Underway>,
}

/// A body that holds what its request holds.
pub(super) struct Answer {
    sending: Arc<Sending>,
    size: SizeHint,
    /// The last byte goes by itself then: a part is asked for when there is room for the first byte of the one before, not when that
    /// was sent.
    is_http2: bool,
    /// Whether there is nothing to send, not even an empty part: trailers of gRPC are part of the head then.
    is_empty: bool,
}

/// The part of it that the connection looks at.
pub(super) struct Sending(Mutex<State>);

struct State {
    /// None once it was cut.
    body: Option<Body>,
    /// What was read of the body and not given to the connection.
    rest: Bytes,
    held: Held,
    /// Since when the client is to take what it was given.
    stalled: Option<Instant>,
}

impl Answer {
    pub fn new(body: Body, held: Held, version: Version) -> Self {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let activity = held.underway.as_ref().map(|underway| underway.activity().clone());
        let state = State { body: Some(body), rest: Bytes::new(), held, stalled: Some(Instant::now()) };
        let sending = Arc::new(Sending(Mutex::new(state)));
        if let Some(activity) = activity {
            activity.send(&sending);
        }
        Self { sending, size, is_http2: version == Version::HTTP_2, is_empty }
    }
}

impl Sending {
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
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.sending.0.lock();
        let state = &mut *state;
        let Some(body) = &mut state.body else {
            let slow = Failure::new(Kind::Deadline, "the client took no part of the answer for too long");
            return Poll::Ready(Some(Err(axum::Error::new(slow))));
        };
        state.stalled = None;
        if state.rest.is_empty() {
            if let Some(messages) = &state.held.messages {
                messages.sent();
            }
            match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => state.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        state.stalled = Some(Instant::now());
        let last = if self.is_http2 { state.rest.len().saturating_sub(1).max(1) } else { PART };
        let part = state.rest.split_to(state.rest.len().min(last).min(PART));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.sending.0.lock().held);
        if let Some(underway) = &held.underway {
            underway.activity().keep(held.place);
        }
    }
}
