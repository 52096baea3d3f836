//! One text of an engine: its request and its progress.

use opara_candle::ops::{Sampler, Sampling, NO_TOKEN};

use super::error::{Result, TextError};
use super::slots::Slot;
use super::text_model::TextModel;

/// A text to write.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to go on from, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to write at most.
    pub most: usize,
    /// Tokens to write at least: before that none of the [ends](Self::ends) is drawn.
    pub least: usize,
    /// The tokens that end a text.
    pub ends: Vec<u32>,
    /// How tokens are drawn. The same seed gives the same text, whatever else is written at the time.
    pub sampling: Sampling,
    /// Whose it is. What was read of a prompt is used for other requests of the same tenant alone.
    pub tenant: u64,
}

impl Request {
    /// Fails for a text that a model cannot write.
    ///
    /// # Errors
    /// [`TextError::EmptyPrompt`], [`TextError::UnknownToken`], [`TextError::TooLong`], and parameters of sampling that are out of range.
    pub fn check(&self, model: &impl TextModel) -> Result<()> {
        let vocab = model.vocab();
        if self.prompt.is_empty() {
            return Err(TextError::EmptyPrompt);
        }
        if let Some(&token) = self.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(TextError::UnknownToken { token, vocab });
        }
        Sampler::new(&[self.sampling], &candle::Device::Cpu)?;
        model.fits(self.prompt.len(), self.most)
    }
}

/// Why a text has no more tokens.
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

    /// One more token. False cancels the text: it ends without a call of [`end`](Self::end).
    fn token(&mut self, token: u32) -> bool;

    /// There are no more tokens. The token that ended the text was not given.
    fn end(&mut self, end: End);

    /// Whether the text is cancelled. Asked before its prompt is read, and between the parts of that.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A request that is in a slot.
pub(super) struct Sequence {
    pub request: Request,
    pub listener: Box<dyn Listener>,
    /// Counts texts in the order in which they were added.
    pub number: u64,
    /// Where its first token stands.
    pub first: usize,
    /// Tokens of the prompt that were read.
    pub read: usize,
    written: usize,
    last: u32,
}

impl Sequence {
    pub fn new(request: Request, listener: Box<dyn Listener>, number: u64, first: usize, read: usize) -> Self {
        Self { request, listener, number, first, read, written: 0, last: 0 }
    }

    pub fn writes(&self) -> bool {
        self.written > 0
    }

    /// Whether it is drawn by the tokens that are marked as seen or barred.
    pub fn has_marks(&self) -> bool {
        self.request.sampling.repetition_penalty != 1. || self.bars_ends()
    }

    /// Whether the next token may not be one that ends the text.
    pub fn bars_ends(&self) -> bool {
        self.written < self.request.least && !self.request.ends.is_empty()
    }

    /// The tokens that may not be drawn.
    pub fn barred(&self) -> &[u32] {
        if self.bars_ends() {
            &self.request.ends
        } else {
            &[]
        }
    }

    /// Tokens that may come before its parameters change or it ends.
    pub fn left(&self) -> usize {
        let Request { least, most, .. } = self.request;
        let until = if self.bars_ends() { least.min(most) } else { most };
        until - self.written
    }

    /// The next tokens of the prompt to read, at most a part of them, and whether they are the last.
    pub fn part(&self, most: usize) -> (&[u32], bool) {
        let left = &self.request.prompt[self.read..];
        (&left[..left.len().min(most)], left.len() <= most)
    }

    /// Takes a token, and says whether it was the last one.
    pub fn take(&mut self, token: u32) -> bool {
        if token == NO_TOKEN {
            self.listener.end(End::Failed(TextError::NotFinite.to_string()));
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
        let position = if self.writes() { self.first + self.written - 1 } else { self.read };
        let (token, writes) = (self.last, self.writes());
        Slot { token, position: position as u32, writes, sampling: self.request.sampling, bars: self.bars_ends() }
    }
}
