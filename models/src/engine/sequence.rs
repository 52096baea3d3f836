//! One text of an engine: its request and its progress.

use std::collections::BTreeMap;

use opara_candle::ops::{Sampler, Sampling, BARRED, NO_TOKEN, SEEN};

use super::error::{Result, TextError};
use super::likelihoods::Likelihoods;
use super::pages::Held;
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
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Subtracted from a token's logit, times the number of times that it was written.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of tokens that were written.
    pub presence_penalty: f32,
    /// With each token its likelihood is [told](Listener::likelihoods), and so is this number of the most likely tokens.
    pub alternatives: Option<usize>,
    /// How likely each token of the prompt is behind those before it is [told](Listener::prompt_likelihoods), and so is this number of the most
    /// likely tokens. Then all of the prompt is read.
    pub prompt_alternatives: Option<usize>,
    /// Whether the listener says which tokens may [come next](Listener::guide).
    pub is_guided: bool,
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
        let biased = self.bias.iter().map(|(token, _)| token);
        if let Some(&token) = self.prompt.iter().chain(biased).find(|token| **token as usize >= vocab) {
            return Err(TextError::UnknownToken { token, vocab });
        }
        let penalties = [self.frequency_penalty, self.presence_penalty];
        if !self.bias.iter().map(|(_, bias)| *bias).chain(penalties).all(f32::is_finite) {
            return Err(candle::Error::msg("what is added to logits must be finite").into());
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

/// What may come next in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guidance {
    /// Any token.
    Any,
    /// Tokens whose bits are set, the lowest of a word first. A vocabulary's tokens beyond the words may not come.
    Of(Vec<u32>),
    /// Nothing: the text ends here, as by one of its [ends](Request::ends).
    End,
}

/// Takes what is written for a request.
pub trait Listener: Send {
    /// The prompt is about to be read, now that there is room for it; so many of its tokens were in the cache already. A text that ends before
    /// that is not told so.
    fn begin(&mut self, cached: usize) {
        let _ = cached;
    }

    /// How likely tokens of the prompt are, from its second one on: told part by part before the first token, where a request asks for
    /// [it](Request::prompt_alternatives).
    fn prompt_likelihoods(&mut self, of: Vec<Likelihoods>) {
        let _ = of;
    }

    /// How likely the token was that comes next: told before it, where a request asks for [alternatives](Request::alternatives).
    fn likelihoods(&mut self, of: Likelihoods) {
        let _ = of;
    }

    /// What may come next in a text that is [guided](Request::is_guided): asked before each token.
    fn guide(&mut self) -> Guidance {
        Guidance::Any
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
    /// Tokens of the prompt that were read, or were in pages that it shares.
    pub read: usize,
    /// Its pages, once reading has begun.
    pub held: Option<Held>,
    written: Vec<u32>,
    guidance: Guidance,
}

impl Sequence {
    /// `None` for a text that has ended before its first token: the listener was told.
    pub fn new(request: Request, mut listener: Box<dyn Listener>, number: u64, first: usize) -> Option<Self> {
        if request.most == 0 {
            listener.end(End::Length);
            return None;
        }
        let (written, guidance) = (Vec::new(), Guidance::Any);
        let mut sequence = Self { request, listener, number, first, read: 0, held: None, written, guidance };
        (!sequence.is_over()).then_some(sequence)
    }

    /// Begins to read, with these pages, of which the first ones have what is shared.
    pub fn begin(&mut self, held: Held, shared: usize) {
        (self.held, self.read) = (Some(held), shared);
        self.listener.begin(shared);
    }

    pub fn pages(&self) -> &[u32] {
        self.held.as_ref().map_or(&[], Held::ids)
    }

    /// Where the next token is written that a step reads.
    pub fn place(&self) -> usize {
        self.first + self.written.len().saturating_sub(1)
    }

    /// Places that have something of it: the first ones.
    pub fn written_places(&self) -> usize {
        if self.writes() {
            self.place()
        } else {
            self.read
        }
    }

    /// Places that it ever needs.
    pub fn places(&self) -> usize {
        self.first + self.request.most - 1
    }

    pub fn writes(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether it is drawn by the tokens that are marked as seen or barred.
    pub fn has_marks(&self) -> bool {
        self.request.sampling.repetition_penalty != 1. || self.bars()
    }

    /// Whether something is added to its logits.
    pub fn has_bias(&self) -> bool {
        !self.request.bias.is_empty() || self.has_penalties()
    }

    fn has_penalties(&self) -> bool {
        self.request.frequency_penalty != 0. || self.request.presence_penalty != 0.
    }

    /// Whether its tokens are drawn otherwise than from the model's logits alone, or are told with these.
    pub fn is_weighed(&self) -> bool {
        self.has_marks() || self.has_bias() || self.request.alternatives.is_some()
    }

    /// Whether the host has to see each token before the next one is drawn.
    pub fn is_stepwise(&self) -> bool {
        self.request.is_guided || self.request.alternatives.is_some() || self.has_penalties()
    }

    /// Whether marks or bias are others than before the last token.
    pub fn has_changed(&self) -> bool {
        self.request.is_guided || self.has_penalties()
    }

    /// Whether the next token may not be one that ends the text.
    pub fn bars_ends(&self) -> bool {
        self.written.len() < self.request.least && !self.request.ends.is_empty()
    }

    /// Whether there are tokens that may not be drawn.
    pub fn bars(&self) -> bool {
        self.request.is_guided || self.bars_ends()
    }

    /// A mark for each token of a vocabulary: whether the text has it so far, and whether it may not be drawn.
    pub fn marks(&self, vocab: usize) -> Vec<u8> {
        let mut marks = vec![0u8; vocab];
        // A token that the vocabulary does not have cannot be drawn.
        let mut mark = |token: u32, with: u8| marks.get_mut(token as usize).into_iter().for_each(|mark| *mark |= with);
        if self.request.sampling.repetition_penalty != 1. {
            self.request.prompt.iter().chain(&self.written).for_each(|token| mark(*token, SEEN));
        }
        if self.bars_ends() {
            self.request.ends.iter().for_each(|token| mark(*token, BARRED));
        }
        if let Guidance::Of(allowed) = &self.guidance {
            (0..vocab as u32).filter(|token| !is_set(allowed, *token)).for_each(|token| mark(token, BARRED));
        }
        marks
    }

    /// What is added to the logit of each token of a vocabulary.
    pub fn bias(&self, vocab: usize) -> Vec<f32> {
        let mut bias = vec![0f32; vocab];
        for (token, by) in &self.request.bias {
            bias[*token as usize] += by;
        }
        if self.has_penalties() {
            let mut counts = BTreeMap::<u32, u32>::new();
            self.written.iter().for_each(|token| *counts.entry(*token).or_default() += 1);
            let Request { frequency_penalty, presence_penalty, .. } = self.request;
            for (token, count) in counts {
                bias[token as usize] -= frequency_penalty * count as f32 + presence_penalty;
            }
        }
        bias
    }

    /// Tokens that may come before its parameters change or it ends.
    pub fn left(&self) -> usize {
        let Request { least, most, .. } = self.request;
        let until = if self.bars_ends() { least.min(most) } else { most };
        until - self.written.len()
    }

    /// The tokens of the prompt to read behind the next `ahead`, at most a part of them, and whether they are the last.
    pub fn part(&self, ahead: usize, most: usize) -> (&[u32], bool) {
        let left = &self.request.prompt[self.read + ahead..];
        (&left[..left.len().min(most)], left.len() <= most)
    }

    /// Takes a token, and says whether it was the last one. `logits` are the model's, if they were asked for.
    pub fn take(&mut self, token: u32, logits: Option<&[f32]>) -> bool {
        if token == NO_TOKEN {
            self.listener.end(End::Failed(TextError::NotFinite.to_string()));
            return true;
        }
        if self.request.ends.contains(&token) {
            self.listener.end(End::Stop);
            return true;
        }
        self.written.push(token);
        if let Some((logits, alternatives)) = logits.zip(self.request.alternatives) {
            self.listener.likelihoods(Likelihoods::of(logits, token, alternatives));
        }
        if !self.listener.token(token) {
            return true;
        }
        if self.written.len() == self.request.most {
            self.listener.end(End::Length);
            return true;
        }
        self.is_over()
    }

    /// Asks what may come next. If that is nothing, the text has ended.
    fn is_over(&mut self) -> bool {
        if !self.request.is_guided {
            return false;
        }
        self.guidance = self.listener.guide();
        let may_come = |allowed: &Vec<u32>| {
            let ends = if self.bars_ends() { &self.request.ends[..] } else { &[] };
            let tokens = 0..32 * allowed.len() as u32;
            tokens.into_iter().any(|token| is_set(allowed, token) && !ends.contains(&token))
        };
        let is_over = match &self.guidance {
            Guidance::Any => false,
            Guidance::Of(allowed) => !may_come(allowed),
            Guidance::End => true,
        };
        if is_over {
            self.listener.end(End::Stop);
        }
        is_over
    }

    /// The slot as the device needs it. The last token is not in the cache yet.
    pub fn on_device(&self) -> Slot<'_> {
        let writes = self.writes();
        let (position, pages) = if writes { (self.place(), self.pages()) } else { (self.read, &[][..]) };
        let (token, sampling) = (self.written.last().copied().unwrap_or(0), self.request.sampling);
        Slot { token, position: position as u32, writes, sampling, bars: self.bars(), pages }
    }
}

/// Whether a token's bit is set.
fn is_set(words: &[u32], token: u32) -> bool {
    words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}
