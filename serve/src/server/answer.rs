//! The body of an answer: it holds the request's place until it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::Version;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::activity::Held;
use super::sending::Sending;

/// A body that holds what its request holds.
pub(super) struct Answer {
    sending: Arc<Sending<Held>>,
    size: SizeHint,
    /// The last byte goes by itself then: a part is asked for when there is room for the first byte of the one before, not when that
    /// was sent.
    is_http2: bool,
    /// Whether there is nothing to send, not even an empty part: trailers of gRPC are part of the head then.
    is_empty: bool,
}

impl Answer {
    pub fn new(body: Body, held: Held, version: Version) -> Self {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let activity = held.underway.as_ref().map(|underway| underway.activity().clone());
        let sending = Arc::new(Sending::new(body, held));
        if let Some(activity) = activity {
            activity.send(&sending);
        }
        Self { sending, size, is_http2: version == Version::HTTP_2, is_empty }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.sending.poll(cx, self.is_http2, |held| {
            if let Some(messages) = &held.messages {
                messages.sent();
            }
        })
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
        let held = self.sending.end();
        if let Some(underway) = &held.underway {
            underway.activity().keep(held.place);
        }
    }
}
