//! The graphs of a batch of slots: one reads parts of prompts, and one for each size of batch adds tokens.

use std::sync::Arc;

use candle::{DType, Tensor};
use opara_candle::ops::{self, Sampling};
use opara_candle::{Builder, Report, StepExecutor};

use super::error::Result;
use super::reading::{inputs, numbers, read, Reading};
use super::sequence::Sequence;
use super::slots::{step, Slots};
use super::text_model::{Part, TextModel};

/// Steps that a GPU is given before the host waits for the first one's tokens.
const AHEAD: usize = 4;

/// Slots on the device, and how their texts read and write. Graphs are built at their first use.
pub(super) struct Graphs<M> {
    pub model: Arc<M>,
    pub slots: Slots,
    /// Sizes of a batch: powers of two from two on, and the number of slots. One row of 16 bits has kernels of its own, with which a
    /// text could write something else when its last neighbour leaves.
    buckets: Vec<usize>,
    /// Prompts that are read together.
    pub prompts: usize,
    /// Without it nothing is built.
    builder: Option<Builder>,
    /// Where a part of each starts, `(prompts)` of u32.
    starts: Tensor,
    read: Option<StepExecutor<Vec<Tensor>>>,
    /// For each bucket one that draws from the logits alone, and one that weighs them.
    steps: Vec<[Option<StepExecutor<Slots>>; 2]>,
    /// No marks and no bias, for as many prompts.
    plain: [Tensor; 2],
    /// Slots whose bias on the device is not zero.
    biased: Vec<bool>,
}

impl<M: TextModel> Graphs<M> {
    pub fn new(model: Arc<M>, slots: usize, prompts: usize, builder: Option<Builder>) -> Result<Self> {
        let buckets: Vec<usize> =
            std::iter::successors(Some(2), |b| Some(2 * b)).take_while(|b| *b < slots).chain([slots]).collect();
        let rows = |dtype| Tensor::zeros((prompts, model.vocab()), dtype, model.device());
        let plain = [rows(DType::U8)?, rows(DType::F32)?];
        let starts = Tensor::zeros(prompts, DType::U32, model.device())?;
        let state = Slots::new(&*model, slots)?;
        let steps = buckets.iter().map(|_| [None, None]).collect();
        let biased = vec![false; slots];
        Ok(Self { model, slots: state, buckets, prompts, builder, starts, read: None, steps, plain, biased })
    }

    /// The size of the smallest batch of at least `slots` slots.
    pub fn bucket(&self, slots: usize) -> usize {
        self.buckets.iter().copied().find(|bucket| *bucket >= slots).unwrap_or(slots)
    }

    /// Builds all graphs.
    pub fn build(&mut self) -> Result<()> {
        self.build_read()?;
        (0..self.buckets.len()).try_for_each(|at| [false, true].into_iter().try_for_each(|is| self.build_step(at, is)))
    }

    /// Reports of the graphs that are built: the reading one, and then the steps.
    pub fn reports(&self) -> impl Iterator<Item = Report> + '_ {
        let steps = self.steps.iter().flatten().flatten().map(StepExecutor::report);
        self.read.iter().map(StepExecutor::report).chain(steps)
    }

    fn build_read(&mut self) -> Result<()> {
        let Some(builder) = self.builder.clone().filter(|_| self.read.is_none()) else { return Ok(()) };
        let (model, prompts) = (&self.model, self.prompts);
        let (part, device) = (model.part(), model.device());
        let drawn = Sampling { temperature: 0.5, top_k: 9, repetition_penalty: 1.5, seed: 7, ..Sampling::default() };
        let tokens: Vec<u32> = (1..=part as u32 * 3 / 4).map(|token| token % model.vocab() as u32).collect();
        let seen = Tensor::ones((1, model.vocab()), DType::U8, device)?;
        let example = |tokens, sampling, seen: Option<&Tensor>| {
            let (seen, bias) = (seen.cloned(), seen.map(|seen| seen.to_dtype(DType::F32)).transpose()?);
            let one = || Reading {
                tokens,
                start: 0,
                position: 0,
                sampling,
                bars: false,
                seen: seen.clone(),
                bias: bias.clone(),
            };
            inputs(&std::iter::repeat_with(one).take(prompts).collect::<Vec<_>>(), part, &self.plain, device)
        };
        let first = example(&[0], Sampling::default(), None)?;
        // Of other values, so that the host code is seen not to depend on any.
        let further = example(&tokens, drawn, Some(&seen))?;
        let of = model.clone();
        let reads = move |inputs: &[Tensor], state: &Vec<Tensor>| read(&*of, inputs, state);
        self.read = Some(builder.example(&further).build_step(reads, &first, &self.reading(0)?)?);
        Ok(())
    }

    fn build_step(&mut self, at: usize, is_weighed: bool) -> Result<()> {
        let built = &mut self.steps[at][usize::from(is_weighed)];
        let Some(builder) = self.builder.clone().filter(|_| built.is_none()) else { return Ok(()) };
        let of = self.model.clone();
        let steps = move |_: &[Tensor], slots: &Slots| step(&*of, slots, is_weighed);
        *built = Some(builder.build_step(steps, &[], &self.slots.first(self.buckets[at])?)?);
        Ok(())
    }

    /// The marks of a text: `(1, vocab)` of u8.
    pub fn marks(&self, of: &Sequence) -> Result<Tensor> {
        let vocab = self.model.vocab();
        Ok(Tensor::from_vec(of.marks(vocab), (1, vocab), self.model.device())?)
    }

    /// What is added to the logits of a text: `(1, vocab)` of f32.
    pub fn bias(&self, of: &Sequence) -> Result<Tensor> {
        let vocab = self.model.vocab();
        Ok(Tensor::from_vec(of.bias(vocab), (1, vocab), self.model.device())?)
    }

    /// Gives a slot the marks and the bias of its text, if it has any.
    pub fn weigh(&mut self, slot: usize, of: &Sequence) -> Result<()> {
        if of.has_marks() {
            self.slots.set_seen(slot, &self.marks(of)?)?;
        }
        let has_bias = of.has_bias();
        if has_bias || self.biased[slot] {
            self.slots.set_bias(slot, &self.bias(of)?)?;
        }
        self.biased[slot] = has_bias;
        Ok(())
    }

    /// Gives a slot what another one has.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<()> {
        self.biased[to] = self.biased[from];
        Ok(self.slots.copy(from, to)?)
    }

    /// Reads into the slots from one on; gives the tokens behind, which need not be there yet, and their logits.
    pub fn read(&mut self, from: usize, parts: &[Reading]) -> Result<[Tensor; 2]> {
        self.build_read()?;
        let inputs = inputs(parts, self.model.part(), &self.plain, self.model.device())?;
        ops::assign(&self.starts, &numbers(parts, |part| part.start, self.model.device())?)?;
        let mut state = self.reading(from)?;
        let given = match &self.read {
            None => read(&*self.model, &inputs, &state)?,
            Some(executor) => executor.step(&inputs, &mut state)?,
        };
        Ok([given[0].clone(), given[1].clone()])
    }

    /// The logits behind each token of a part of a slot's prompt, `(tokens, vocab)` of f32, read eagerly.
    pub fn score(&self, slot: usize, tokens: &[u32], start: usize) -> Result<Tensor> {
        let (part, device) = (self.model.part(), self.model.device());
        let filled = tokens.iter().copied().chain(std::iter::repeat(0)).take(part);
        let one = |number: usize| Tensor::new(&[number as u32], device);
        let (starts, counts) = (one(start)?, one(tokens.len())?);
        let last = Tensor::arange(0, tokens.len() as u32, device)?;
        let ids = Tensor::from_iter(filled, device)?.reshape((1, part))?;
        let part = Part { ids: &ids, starts: &starts, counts: &counts, last: &last };
        Ok(self.model.read(&part, &self.slots.memory(slot, 1)?)?.to_dtype(DType::F32)?)
    }

    /// The state of [`read`] for the slots from one on.
    fn reading(&self, from: usize) -> Result<Vec<Tensor>> {
        Ok([vec![self.starts.clone()], self.slots.memory(from, self.prompts)?].concat())
    }

    /// Steps the slots of a bucket once, weighed: the tokens, one a slot, and the logits.
    pub fn write_one(&mut self, bucket: usize) -> Result<(Vec<u32>, Tensor)> {
        let at = self.at(bucket);
        self.build_step(at, true)?;
        let mut slots = self.slots.first(bucket)?;
        let given = match &self.steps[at][1] {
            None => step(&*self.model, &slots, true)?,
            Some(executor) => executor.step(&[], &mut slots)?,
        };
        Ok((given[0].to_vec1()?, given[1].clone()))
    }

    /// Steps the slots of a bucket, at most `at_most` times. `each` gets a step's tokens, one a slot, and says whether more steps are
    /// wanted. It also gets the tokens of steps that were enqueued by then.
    pub fn write(
        &mut self,
        bucket: usize,
        is_weighed: bool,
        at_most: usize,
        mut each: impl FnMut(&[u32]) -> bool,
    ) -> Result<()> {
        let at = self.at(bucket);
        self.build_step(at, is_weighed)?;
        let mut slots = self.slots.first(bucket)?;
        match &self.steps[at][usize::from(is_weighed)] {
            None => {
                for _ in 0..at_most {
                    if !each(&step(&*self.model, &slots, is_weighed)?[0].to_vec1()?) {
                        break;
                    }
                }
            }
            Some(executor) => {
                let mut stream = executor.stream(&mut slots, AHEAD).at_most(at_most);
                while let Some(tokens) = stream.next() {
                    if !each(&tokens?) {
                        stream.enqueue_no_more();
                    }
                }
            }
        }
        Ok(())
    }

    fn at(&self, bucket: usize) -> usize {
        self.buckets.iter().position(|of| *of == bucket).unwrap_or(0)
    }
}
