//! Generation: prompts are read by parts, then a step adds a token to each sequence, again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle::{DType, Device, Tensor};
use opara_candle::ops::{self, Sampler, Sampling, NO_TOKEN};
use opara_candle::{Builder, StepExecutor, StepState};

use super::cache::{Cache, CHUNK};
use super::engine::AHEAD;
use super::error::{DecoderError, Result};
use super::slots::own_tokens;
use super::Decoder;

/// What a step carries on: the last token of each sequence, its keys and values, and how tokens are drawn.
#[derive(Clone)]
pub struct Writing {
    /// `(batch, 1)`, u32.
    token: Tensor,
    cache: Cache,
    sampler: Tensor,
}

impl Writing {
    /// Empty texts, one for each of `sampling`.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(model: &Decoder, sampling: &[Sampling]) -> Result<Self> {
        let (batch, device) = (sampling.len(), model.device());
        let sampler = Sampler::new(sampling, device)?.parameters().clone();
        Ok(Self { token: Tensor::zeros((batch, 1), DType::U32, device)?, cache: model.cache(batch)?, sampler })
    }

    fn batch(&self) -> candle::Result<usize> {
        self.token.dim(0)
    }
}

impl StepState for Writing {
    fn tensors(&self) -> Vec<Tensor> {
        let few = [&self.token, &self.cache.position, &self.sampler];
        few.into_iter().chain(&self.cache.layers).cloned().collect()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let [token, position, sampler] = [0, 1, 2].map(|at| tensors[at].clone());
        Self { token, cache: Cache { layers: tensors[3..].to_vec(), position }, sampler }
    }
}

/// Adds a token to each sequence.
fn step(model: &Decoder, writing: &Writing) -> candle::Result<Vec<Tensor>> {
    let hidden = model.forward(&writing.token, &writing.cache)?;
    let logits = ops::squeeze(&model.logits(&hidden)?, 1)?;
    let token = ops::sample(&logits, &Sampler::of(writing.sampler.clone())?, &writing.cache.position, None)?;
    ops::assign(&writing.token, &ops::unsqueeze(&token, 1)?)?;
    ops::advance(&writing.cache.position, 1)?;
    Ok(vec![token])
}

/// Reads a part of each prompt, and draws the token behind it. The inputs are tokens `(batch, CHUNK)`, and for each sequence how
/// many of them are its own, where the last of these is among all of them, and one if there are any.
fn read(model: &Decoder, inputs: &[Tensor], writing: &Writing) -> candle::Result<Vec<Tensor>> {
    let [ids, counts, last, is_read] = [0, 1, 2, 3].map(|at| &inputs[at]);
    let own = own_tokens(ids, &ops::unsqueeze(counts, 1)?, |places, counts| places.broadcast_lt(counts))?;
    let hidden = model.forward_part(ids, Some(&own), &writing.cache)?;
    let (batch, tokens, size) = hidden.dims3()?;
    let hidden = ops::index_select(&ops::reshape(&hidden, (batch * tokens, size))?, last, 0)?;
    // The position of the last token of each, as in a step.
    let next = ops::add(&writing.cache.position, counts)?;
    let logits = model.logits(&hidden)?;
    let token = ops::sample(&logits, &Sampler::of(writing.sampler.clone())?, &ops::sub(&next, is_read)?, None)?;
    let token = ops::where_cond(is_read, &token, &ops::squeeze(&writing.token, 1)?)?;
    ops::assign(&writing.token, &ops::unsqueeze(&token, 1)?)?;
    ops::assign(&writing.cache.position, &next)?;
    Ok(vec![token])
}

/// How steps run.
enum Run {
    Eager,
    Executors(Box<Executors>),
}

/// What reads a part of the prompts, and what adds a token.
struct Executors {
    read: StepExecutor<Writing>,
    step: StepExecutor<Writing>,
}

/// Writes texts for a batch of prompts. What reads a part of the prompts is one replayed graph, and what adds a token is another,
/// the same for all lengths.
pub struct Generator {
    model: Arc<Decoder>,
    writing: Writing,
    run: Run,
}

/// What was generated, and how long it took.
#[derive(Debug, Clone)]
pub struct Generated {
    /// Of each sequence, without the token that ended it.
    pub tokens: Vec<Vec<u32>>,
    /// Tokens of the longest prompt, filled up or not.
    pub prompt: usize,
    /// Until the first token of each sequence was there.
    pub reading: Duration,
    /// From there to the end, and the steps that this took.
    pub writing: Duration,
    /// Each adds a token to each sequence.
    pub steps: usize,
}

impl Generator {
    /// For as many sequences as there are ways to draw tokens, by executors with these settings.
    ///
    /// # Errors
    /// Those of the model and of its executors.
    pub fn new(model: Arc<Decoder>, sampling: &[Sampling], builder: &Builder) -> Result<Self> {
        let writing = Writing::new(&model, sampling)?;
        let inputs = part(&vec![vec![0]; writing.batch()?], 0, model.device())?;
        let of = model.clone();
        let reads = move |inputs: &[Tensor], writing: &Writing| read(&of, inputs, writing);
        let read = builder.clone().build_step(reads, &inputs, &writing)?;
        let of = model.clone();
        let steps = move |_: &[Tensor], writing: &Writing| step(&of, writing);
        let step = builder.clone().build_step(steps, &[], &writing)?;
        Ok(Self { model, writing, run: Run::Executors(Box::new(Executors { read, step })) })
    }

    /// Without executors.
    ///
    /// # Errors
    /// No memory left.
    pub fn eager(model: Arc<Decoder>, sampling: &[Sampling]) -> Result<Self> {
        let writing = Writing::new(&model, sampling)?;
        Ok(Self { model, writing, run: Run::Eager })
    }

    /// What reads prompts, and what adds a token, if executors do.
    pub fn executors(&self) -> Option<(&StepExecutor<Writing>, &StepExecutor<Writing>)> {
        match &self.run {
            Run::Eager => None,
            Run::Executors(executors) => Some((&executors.read, &executors.step)),
        }
    }

    /// Up to `most` tokens behind each prompt, until one of `ends` comes. `each` gets the tokens of a step as they come, `None` for
    /// sequences that have ended.
    ///
    /// # Errors
    /// [`DecoderError::Batch`], [`DecoderError::EmptyPrompt`], [`DecoderError::UnknownToken`], [`DecoderError::TooLong`],
    /// [`DecoderError::NotFinite`]; those of the model and of its executors.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        most: usize,
        ends: &[u32],
        mut each: impl FnMut(&[Option<u32>]),
    ) -> Result<Generated> {
        self.check(prompts, most)?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let Self { model, writing, run } = self;
        ops::assign(&writing.cache.position, &writing.cache.position.zeros_like()?)?;
        let start = Instant::now();
        let mut token = Vec::new();
        for at in (0..longest).step_by(CHUNK) {
            let inputs = part(prompts, at, model.device())?;
            let given = match run {
                Run::Eager => read(model, &inputs, writing)?,
                Run::Executors(executors) => executors.read.step(&inputs, writing)?,
            };
            if at + CHUNK >= longest {
                token = given[0].to_vec1::<u32>()?;
            }
        }
        let reading = start.elapsed();
        let mut texts = Texts::new(prompts.len(), ends);
        if most > 0 {
            each(&texts.add(&token)?);
        }
        let (start, mut steps) = (Instant::now(), 0);
        let left = most.saturating_sub(1);
        match run {
            Run::Eager => {
                while steps < left && texts.are_open() {
                    let token = step(model, writing)?[0].to_vec1::<u32>()?;
                    each(&texts.add(&token)?);
                    steps += 1;
                }
            }
            Run::Executors(executors) if texts.are_open() => {
                for token in executors.step.stream(writing, AHEAD).at_most(left) {
                    each(&texts.add(&token?)?);
                    steps += 1;
                    if !texts.are_open() {
                        break;
                    }
                }
            }
            Run::Executors(_) => {}
        }
        Ok(Generated { tokens: texts.tokens, prompt: longest, reading, writing: start.elapsed(), steps })
    }

    fn check(&self, prompts: &[Vec<u32>], most: usize) -> Result<()> {
        let batch = self.writing.batch()?;
        if prompts.len() != batch {
            return Err(DecoderError::Batch { found: prompts.len(), batch });
        }
        prompts.iter().enumerate().try_for_each(|(index, prompt)| {
            self.model.check(prompt, index)?;
            self.model.fits(prompt.len(), most)
        })
    }
}

impl Decoder {
    /// Fails for a prompt that cannot be read; `index` is its place in a batch.
    pub(super) fn check(&self, prompt: &[u32], index: usize) -> Result<()> {
        let vocab = self.config.vocab;
        if prompt.is_empty() {
            return Err(DecoderError::EmptyPrompt { index });
        }
        match prompt.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(DecoderError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    /// Fails for a text that is longer than the context.
    ///
    /// # Errors
    /// [`DecoderError::TooLong`].
    pub fn fits(&self, prompt: usize, answer: usize) -> Result<()> {
        let (context, most) = (self.context, self.config.max_positions);
        match prompt.saturating_add(answer) <= context {
            true => Ok(()),
            false => Err(DecoderError::TooLong { prompt, answer, context, most }),
        }
    }
}

/// The inputs of [`read`] for the tokens of each prompt from `at` on.
fn part(prompts: &[Vec<u32>], at: usize, device: &Device) -> candle::Result<Vec<Tensor>> {
    let batch = prompts.len();
    let own = |prompt: &Vec<u32>| prompt.len().saturating_sub(at).min(CHUNK);
    let counts: Vec<u32> = prompts.iter().map(|prompt| own(prompt) as u32).collect();
    let ids = prompts.iter().flat_map(|prompt| {
        let own = prompt.iter().skip(at).take(CHUNK).copied();
        own.chain(std::iter::repeat(0)).take(CHUNK)
    });
    let ids = Tensor::from_iter(ids, device)?.reshape((batch, CHUNK))?;
    let last = counts.iter().zip(0u32..).map(|(count, item)| item * CHUNK as u32 + count.saturating_sub(1));
    let is_read = counts.iter().map(|&count| u32::from(count > 0));
    Ok(vec![
        ids,
        Tensor::new(counts.as_slice(), device)?,
        Tensor::from_iter(last, device)?,
        Tensor::from_iter(is_read, device)?,
    ])
}

/// The tokens so far.
struct Texts<'a> {
    tokens: Vec<Vec<u32>>,
    open: Vec<bool>,
    ends: &'a [u32],
}

impl<'a> Texts<'a> {
    fn new(batch: usize, ends: &'a [u32]) -> Self {
        Self { tokens: vec![Vec::new(); batch], open: vec![true; batch], ends }
    }

    /// One of each sequence; gives those that belong to it.
    fn add(&mut self, tokens: &[u32]) -> Result<Vec<Option<u32>>> {
        if self.open.iter().zip(tokens).any(|(open, &token)| *open && token == NO_TOKEN) {
            return Err(DecoderError::NotFinite);
        }
        let texts = self.tokens.iter_mut().zip(&mut self.open);
        let added = texts.zip(tokens).map(|((text, open), &token)| {
            *open &= !self.ends.contains(&token);
            open.then(|| {
                text.push(token);
                token
            })
        });
        Ok(added.collect())
    }

    fn are_open(&self) -> bool {
        self.open.contains(&true)
    }
}
