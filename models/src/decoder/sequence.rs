//! One sequence of a batch: its request and its progress.

use opara_candle::ops::{Sampler, Sampling, NO_TOKEN};

use super::error::{DecoderError, Result};
use super::slots::Slot;
use super::Decoder;

/// A text to write.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to go on from, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to write at most.
    pub most: usize,
    /// The tokens that end a text.
    pub ends: Vec<u32>,
    /// How tokens are drawn. The same seed gives the same text, whatever else is written at the time.
    pub sampling: Sampling,
}

/// On what terms a [`Request`] joins a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// Tokens to write at least: before that none of the [ends](Request::ends) is drawn.
    pub least: usize,
    /// Whose it is. What was read of a prompt is used for other requests of the same tenant alone.
    pub tenant: u64,
}

impl Request {
    /// Fails for what a model cannot write.
    ///
    /// # Errors
    /// [`EmptyPrompt`](super::DecoderError::EmptyPrompt), [`UnknownToken`](super::DecoderError::UnknownToken),
    /// [`TooLong`](super::DecoderError::TooLong), and parameters of sampling that are out of range.
    pub fn check(&self, model: &Decoder) -> Result<()> {
        model.check(&self.prompt, 0)?;
        Sampler::new(&[self.sampling], &candle::Device::Cpu)?;
        model.fits(self.prompt.len(), self.most)
    }
}

/// Why a sequence has no more tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// One of the tokens that end a text came.
    Stop,
    /// There are as many tokens as were asked for.
    Length,
    /// The device or the model failed.
    Failed(String),
}

/// Takes what is written for a request.
pub trait Listener: Send {
    /// The prompt is about to be read; so many of its tokens were in the cache already.
    fn begin(&mut self, cached: usize) {
        let _ = cached;
    }

    /// One more token. False cancels the sequence: it ends without a call of [`end`](Self::end).
    fn token(&mut self, token: u32) -> bool;

    /// There are no more tokens. The token that ended the text was not given.
    fn end(&mut self, end: End);

    /// Whether the sequence is cancelled. Asked before its prompt is read, and between the parts of that.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A request that is in a slot.
pub(super) struct Sequence {
    pub request: Request,
    pub listener: Box<dyn Listener>,
    pub terms: Terms,
    /// Counts sequences in the order in which they joined.
    pub number: u64,
    /// Tokens of the prompt that were read.
    pub read: usize,
    written: usize,
    last: u32,
}

impl Sequence {
    pub fn new(request: Request, terms: Terms, listener: Box<dyn Listener>, number: u64, read: usize) -> Self {
        Self { request, listener, terms, number, read, written: 0, last: 0 }
    }

    pub fn writes(&self) -> bool {
        self.written > 0
    }

    pub fn has_penalty(&self) -> bool {
        self.request.sampling.repetition_penalty != 1.
    }

    /// Whether the next token may not be one that ends the text.
    pub fn bars_ends(&self) -> bool {
        self.written < self.terms.least && !self.request.ends.is_empty()
    }

    /// Tokens that may come before its parameters change or it ends.
    pub fn left(&self) -> usize {
        let most = if self.bars_ends() { self.terms.least.min(self.request.most) } else { self.request.most };
        most - self.written
    }

    /// Takes a token, and says whether it was the last one.
    pub fn take(&mut self, token: u32) -> bool {
        if token == NO_TOKEN {
            self.listener.end(End::Failed(DecoderError::NotFinite.to_string()));
            return true;
        }
        if self.request.ends.contains(&token) {
            self.listener.end(End::Stop);
            return true;
        }
        (self.written, self.last) = (self.written + 1, token);
        if !self.listener.token(token) {
            return true;
        }
        let is_last = self.written == self.request.most;
        if is_last {
            self.listener.end(End::Length);
        }
        is_last
    }

    /// The slot as the device needs it. The last token is not in the cache yet.
    pub fn on_device(&self) -> Slot {
        let position = if self.writes() { self.request.prompt.len() + self.written - 1 } else { self.read };
        let (token, writes) = (self.last, self.writes());
        Slot { token, position: position as u32, writes, sampling: self.request.sampling, bars: self.bars_ends() }
    }
}
