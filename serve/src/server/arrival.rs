//! The body of a request: it has to arrive in time, and messages of a stream take a place each.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::model::{Failure, Kind};
use crate::protocol::MessagePlaces;

/// How an error of a body is said to the protocol that reads it.
pub(super) type Say = fn(Failure) -> axum::Error;

/// A body with bounds on its time.
pub(super) struct Arrival {
    body: Body,
    read_time: Duration,
    say: Say,
    /// By then the body, or the message that has begun, must be there. Starts anew with each message.
    due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    messages: Option<Messages>,
}

/// A stream of messages of gRPC.
pub(super) struct Messages {
    pub places: Arc<MessagePlaces>,
    /// How long it may be without a message.
    pub idle_time: Duration,
    framing: Framing,
}

impl Messages {
    pub fn new(places: Arc<MessagePlaces>, idle_time: Duration) -> Self {
        Self { places, idle_time, framing: Framing::default() }
    }
}

/// Where a stream of gRPC stands: each message has five bytes before it, of which four are its length.
#[derive(Debug, Default, PartialEq, Eq)]
struct Framing {
    head: Vec<u8>,
    left: usize,
}

impl Framing {
    fn is_between(&self) -> bool {
        self.head.is_empty() && self.left == 0
    }

    /// Goes on by these bytes.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                self.head.push(bytes[0]);
                bytes = &bytes[1..];
                if let [_, a, b, c, d] = self.head[..] {
                    self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                    self.head.clear();
                }
                continue;
            }
            let passed = self.left.min(bytes.len());
            self.left -= passed;
            bytes = &bytes[passed..];
        }
    }
}

impl Arrival {
    /// A body that has to arrive within `read_time`, as a whole or message by message.
    pub fn new(body: Body, read_time: Duration, messages: Option<Messages>, say: Say) -> Self {
        let due = messages.is_none().then(|| Instant::now() + read_time);
        Self { body, read_time, say, due, timer: None, messages }
    }

    /// The client is waited for.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let is_between = self.messages.as_ref().is_some_and(|messages| messages.framing.is_between());
        let time = match &self.messages {
            Some(messages) if is_between => {
                messages.places.read();
                messages.idle_time
            }
            _ => self.read_time,
        };
        let due = *self.due.get_or_insert_with(|| Instant::now() + time);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        std::task::ready!(timer.as_mut().poll(cx));
        let seconds = time.as_secs_f64();
        Poll::Ready(match is_between {
            true => Failure::new(Kind::BodyTimeout, format!("no message came for {seconds} s")),
            false => Failure::new(Kind::BodyTimeout, format!("the body took longer than {seconds} s")),
        })
    }
}

impl HttpBody for Arrival {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let failure = std::task::ready!(self.poll_time(cx));
                return Poll::Ready(Some(Err((self.say)(failure))));
            }
        };
        let Self { messages, due, say, .. } = &mut *self;
        if let (Some(messages), Some(Ok(frame))) = (messages, &frame) {
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if !data.is_empty() && !messages.places.take() {
                return Poll::Ready(Some(Err(say(MessagePlaces::full()))));
            }
            let was_between = messages.framing.is_between();
            messages.framing.pass(data);
            if was_between || messages.framing.is_between() {
                *due = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_where_their_lengths_say_however_they_are_cut() {
        let message = |length: usize| [&[0][..], &(length as u32).to_be_bytes(), &vec![7; length]].concat();
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let messages: Vec<Vec<u8>> = (0..rng.usize(1..6)).map(|_| message(rng.usize(0..40))).collect();
            let mut ends: Vec<usize> = messages.iter().map(Vec::len).collect();
            (1..ends.len()).for_each(|at| ends[at] += ends[at - 1]);
            let (bytes, mut framing, mut at) = (messages.concat(), Framing::default(), 0);
            while at < bytes.len() {
                let next = rng.usize(at..=bytes.len());
                framing.pass(&bytes[at..next]);
                at = next;
                assert_eq!(framing.is_between(), at == 0 || ends.contains(&at), "seed {seed}: {at} of {ends:?}");
            }
        }
    }
}
