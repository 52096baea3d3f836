//! The text of an answer, piece by piece.

use std::sync::Arc;
use std::time::Instant;

use opara_models::decoder::{DecoderError, Pieces, Text};

use super::delivery::{Event, Finish, Receiver};
use super::stop::StopStrings;
use super::Result;
use crate::batch::{EngineError, Error};

/// A text that is being written. Dropping it cancels the request.
pub struct Answer {
    text: Arc<Text>,
    receiver: Receiver,
    pieces: Pieces,
    stops: StopStrings,
    /// Tokens whose text no string ends.
    least: usize,
    deadline: Option<Instant>,
    /// Whether the deadline is that of the first token alone.
    is_streamed: bool,
    usage: Usage,
    finish: Option<Finish>,
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, those that were in the cache already.
    pub cached: usize,
    /// Of the answer so far, without the one that ends it.
    pub written: usize,
}

impl Answer {
    pub(super) fn new(text: Arc<Text>, receiver: Receiver, stops: StopStrings, least: usize, prompt: usize) -> Self {
        Self {
            text,
            receiver,
            pieces: Pieces::default(),
            stops,
            least,
            deadline: None,
            is_streamed: false,
            usage: Usage { prompt, ..Usage::default() },
            finish: None,
        }
    }

    /// Fails if there is no whole text, or with `is_streamed` no first token, before this time.
    pub fn until(mut self, deadline: Instant, is_streamed: bool) -> Self {
        (self.deadline, self.is_streamed) = (Some(deadline), is_streamed);
        self
    }

    /// A piece of the text that is not empty; `None` when it has ended. In a runtime of tokio that has timers, if there is a deadline.
    ///
    /// # Errors
    /// See [`GenerateError`](super::GenerateError). Then there is nothing more to come.
    pub async fn next(&mut self) -> Result<Option<String>> {
        while self.finish.is_none() {
            let piece = match self.event().await? {
                Event::Begun { cached } => {
                    self.usage.cached = cached;
                    continue;
                }
                Event::Token(token) => {
                    self.usage.written += 1;
                    if self.is_streamed {
                        self.deadline = None;
                    }
                    let piece = self.text.piece(&mut self.pieces, token).map_err(undecodable)?;
                    let (certain, has_ended) = self.certain(piece);
                    if has_ended {
                        self.end(Finish::Stop);
                    }
                    certain
                }
                Event::Ended(finish) => {
                    let finish = finish?;
                    let rest = self.text.rest(&self.pieces).map_err(undecodable)?;
                    let (certain, has_ended) = self.certain(rest);
                    self.end(if has_ended { Finish::Stop } else { finish });
                    certain + &self.stops.rest()
                }
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The whole text.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub async fn whole(&mut self) -> Result<String> {
        let mut whole = String::new();
        while let Some(piece) = self.next().await? {
            whole += &piece;
        }
        Ok(whole)
    }

    /// Why it has ended, if it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Numbers of tokens so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The part of the text that is certain with this piece, and whether a string ends it there.
    fn certain(&mut self, piece: String) -> (String, bool) {
        match self.usage.written <= self.least {
            true => (piece, false),
            false => self.stops.push(&piece),
        }
    }

    async fn event(&mut self) -> Result<Event> {
        let event = self.receiver.next();
        match self.deadline {
            Some(deadline) => Ok(tokio::time::timeout_at(deadline.into(), event).await.map_err(|_| Error::Deadline)?),
            None => Ok(event.await),
        }
    }

    /// Takes no more tokens, which cancels the rest.
    fn end(&mut self, finish: Finish) {
        self.finish = Some(finish);
        self.receiver.close();
    }
}

/// Tokens without a text are no fault of the client's.
fn undecodable(error: DecoderError) -> Error {
    Error::Engine(EngineError::new(format!("tokens have no text: {error}")))
}
