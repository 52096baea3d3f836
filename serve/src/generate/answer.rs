//! The text of an answer, piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use opara_models::decoder::{DecoderError, Pieces, Text};
use opara_models::engine::Likelihoods;

use super::delivery::{Event, Finish, Receiver};
use super::stop::StopStrings;
use super::{Encoded, Result, Wanted};
use crate::batch::{EngineError, Error};

/// A text that is being written. Dropping it cancels the request.
pub struct Answer {
    text: Arc<Text>,
    receiver: Receiver,
    prompt: Encoded,
    /// How likely its tokens are, from the second one on.
    read: Vec<Likelihoods>,
    pieces: Pieces,
    stops: StopStrings,
    /// Tokens whose text no string ends.
    least: usize,
    /// Bytes of the text that its tokens have given so far.
    given: usize,
    /// Of these, those that are part of the answer.
    certain: usize,
    /// Tokens whose text is not certain.
    held: VecDeque<Written>,
    deadline: Option<Instant>,
    /// Whether the deadline is that of the first token alone.
    is_streamed: bool,
    usage: Usage,
    finish: Option<Finish>,
}

/// A part of a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// The tokens whose text begins here. Where a string ends the text, the tokens behind its beginning are left out.
    pub tokens: Vec<Written>,
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The token.
    pub token: u32,
    /// Where its text begins, in bytes of the answer's text.
    pub start: usize,
    /// How likely it was, where that was asked for.
    pub likelihoods: Option<Likelihoods>,
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
    pub(super) fn new(text: Arc<Text>, receiver: Receiver, wanted: &Wanted, prompt: Encoded) -> Self {
        let usage = Usage { prompt: prompt.tokens.len(), ..Usage::default() };
        Self {
            text,
            receiver,
            prompt,
            read: Vec::new(),
            pieces: if wanted.names_special { Pieces::naming_special() } else { Pieces::default() },
            stops: StopStrings::new(wanted.stops.clone()),
            least: wanted.least,
            given: 0,
            certain: 0,
            held: VecDeque::new(),
            deadline: None,
            is_streamed: false,
            usage,
            finish: None,
        }
    }

    /// Fails if there is no whole text, or with `is_streamed` no first token, before this time.
    pub fn until(mut self, deadline: Instant, is_streamed: bool) -> Self {
        (self.deadline, self.is_streamed) = (Some(deadline), is_streamed);
        self
    }

    /// The next part of the text, which has letters or tokens; `None` when it has ended. In a runtime of tokio that has timers, if there is
    /// a deadline.
    ///
    /// # Errors
    /// See [`GenerateError`](super::GenerateError). Then there is nothing more to come.
    pub async fn next(&mut self) -> Result<Option<Piece>> {
        while self.finish.is_none() {
            let text = match self.event().await? {
                Event::Begun { cached } => {
                    self.usage.cached = cached;
                    continue;
                }
                Event::Prompt(of) => {
                    self.read.extend(of);
                    continue;
                }
                Event::Token(token, likelihoods) => {
                    self.usage.written += 1;
                    if self.is_streamed {
                        self.deadline = None;
                    }
                    self.held.push_back(Written { token, start: self.given, likelihoods });
                    let piece = self.text.piece(&mut self.pieces, token).map_err(undecodable)?;
                    self.given += piece.len();
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
                    if has_ended {
                        certain
                    } else {
                        let rest = certain + &self.stops.rest();
                        let tokens = self.told(&rest, true);
                        if rest.is_empty() && tokens.is_empty() {
                            return Ok(None);
                        }
                        return Ok(Some(Piece { text: rest, tokens }));
                    }
                }
            };
            if !text.is_empty() {
                let tokens = self.told(&text, false);
                return Ok(Some(Piece { text, tokens }));
            }
        }
        Ok(None)
    }

    /// The tokens whose text begins in this part, which is now certain; all that are left, if it is the last one.
    fn told(&mut self, part: &str, is_last: bool) -> Vec<Written> {
        self.certain += part.len();
        let begins = |written: &Written| is_last || written.start < self.certain;
        let tokens = self.held.iter().take_while(|written| begins(written)).count();
        self.held.drain(..tokens).collect()
    }

    /// The whole text, with all its tokens.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub async fn whole(&mut self) -> Result<Piece> {
        let mut whole = Piece::default();
        while let Some(piece) = self.next().await? {
            whole.text += &piece.text;
            whole.tokens.extend(piece.tokens);
        }
        Ok(whole)
    }

    /// The tokens of its prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt.tokens
    }

    /// How likely the tokens of its prompt are, from the second one on, where that was asked for: known with the first piece. Given once.
    pub fn take_read(&mut self) -> Vec<Likelihoods> {
        std::mem::take(&mut self.read)
    }

    /// Whether it begins within the model's reasoning.
    pub fn is_thinking(&self) -> bool {
        self.prompt.is_thinking
    }

    /// The tokenizer of its model.
    pub fn tokenizer(&self) -> &Arc<Text> {
        &self.text
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
