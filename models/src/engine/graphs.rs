//! The graphs of a batch of slots: one reads parts of prompts, and one for each size of batch adds tokens.

use std::sync::Arc;

use candle::{DType, Tensor};
use opara_candle::ops::{self, Sampling, BARRED};
use opara_candle::{Builder, Report, StepExecutor};

use super::error::Result;
use super::reading::{inputs, numbers, read, Reading};
use super::slots::{step, Slots};
use super::text_model::TextModel;

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
    /// For each bucket one that marks no tokens, and one that does.
    steps: Vec<[Option<StepExecutor<Slots>>; 2]>,
    /// No token, for as many prompts.
    unseen: Tensor,
}

impl<M: TextModel> Graphs<M> {
    pub fn new(model: Arc<M>, slots: usize, prompts: usize, builder: Option<Builder>) -> Result<Self> {
        let buckets: Vec<usize> =
            std::iter::successors(Some(2), |b| Some(2 * b)).take_while(|b| *b < slots).chain([slots]).collect();
        let unseen = Tensor::zeros((prompts, model.vocab()), DType::U8, model.device())?;
        let starts = Tensor::zeros(prompts, DType::U32, model.device())?;
        let state = Slots::new(&*model, slots)?;
        let steps = buckets.iter().map(|_| [None, None]).collect();
        Ok(Self { model, slots: state, buckets, prompts, builder, starts, read: None, steps, unseen })
    }

    /// The size of the smallest batch of at least `slots` slots.
    pub fn bucket(&self, slots: usize) -> usize {
        self.buckets.iter().copied().find(|bucket| *bucket >= slots).unwrap_or(slots)
    }

    /// Builds all graphs.
    pub fn build(&mut self) -> Result<()> {
        self.build_read()?;
        (0..self.buckets.len())
            .try_for_each(|at| [false, true].into_iter().try_for_each(|has| self.build_step(at, has)))
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
        let seen = self.marks(tokens.iter().copied(), &[])?;
        let example = |tokens, sampling, seen: Option<&Tensor>| {
            let seen = seen.cloned();
            let one = || Reading { tokens, start: 0, position: 0, sampling, bars: false, seen: seen.clone() };
            inputs(&std::iter::repeat_with(one).take(prompts).collect::<Vec<_>>(), part, &self.unseen, device)
        };
        let first = example(&[0], Sampling::default(), None)?;
        // Of other values, so that the host code is seen not to depend on any.
        let further = example(&tokens, drawn, Some(&seen))?;
        let of = model.clone();
        let reads = move |inputs: &[Tensor], state: &Vec<Tensor>| read(&*of, inputs, state);
        self.read = Some(builder.example(&further).build_step(reads, &first, &self.reading(0)?)?);
        Ok(())
    }

    fn build_step(&mut self, at: usize, has_marks: bool) -> Result<()> {
        let built = &mut self.steps[at][usize::from(has_marks)];
        let Some(builder) = self.builder.clone().filter(|_| built.is_none()) else { return Ok(()) };
        let of = self.model.clone();
        let steps = move |_: &[Tensor], slots: &Slots| step(&*of, slots, has_marks);
        *built = Some(builder.build_step(steps, &[], &self.slots.first(self.buckets[at])?)?);
        Ok(())
    }

    /// Marks the tokens of a text so far, and those to bar: `(1, vocab)` of u8. A token that the vocabulary does not have cannot be drawn.
    pub fn marks(&self, seen: impl IntoIterator<Item = u32>, barred: &[u32]) -> Result<Tensor> {
        let mut marks = vec![0u8; self.model.vocab()];
        for token in seen {
            marks[token as usize] = 1;
        }
        for token in barred {
            if let Some(mark) = marks.get_mut(*token as usize) {
                *mark |= BARRED;
            }
        }
        Ok(Tensor::from_vec(marks, (1, self.model.vocab()), self.model.device())?)
    }

    /// Reads into the slots from one on; gives the tokens behind, which need not be there yet.
    pub fn read(&mut self, from: usize, parts: &[Reading]) -> Result<Tensor> {
        self.build_read()?;
        let inputs = inputs(parts, self.model.part(), &self.unseen, self.model.device())?;
        ops::assign(&self.starts, &numbers(parts, |part| part.start, self.model.device())?)?;
        let mut state = self.reading(from)?;
        let mut given = match &self.read {
            None => read(&*self.model, &inputs, &state)?,
            Some(executor) => executor.step(&inputs, &mut state)?,
        };
        Ok(given.swap_remove(0))
    }

    /// The state of [`read`] for the slots from one on.
    fn reading(&self, from: usize) -> Result<Vec<Tensor>> {
        Ok([vec![self.starts.clone()], self.slots.memory(from, self.prompts)?].concat())
    }

    /// Steps the slots of a bucket, at most `at_most` times. `each` gets a step's tokens, one a slot, and says whether more steps are
    /// wanted. It also gets the tokens of steps that were enqueued by then.
    pub fn write(
        &mut self,
        bucket: usize,
        has_marks: bool,
        at_most: usize,
        mut each: impl FnMut(&[u32]) -> bool,
    ) -> Result<()> {
        let at = self.buckets.iter().position(|of| *of == bucket).unwrap_or(0);
        self.build_step(at, has_marks)?;
        let mut slots = self.slots.first(bucket)?;
        match &self.steps[at][usize::from(has_marks)] {
            None => {
                for _ in 0..at_most {
                    if !each(&step(&*self.model, &slots, has_marks)?[0].to_vec1()?) {
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
}
