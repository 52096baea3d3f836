//! The graphs of a batch of slots: one for each number of parts reads prompts, and one for each size of batch adds tokens.

use std::sync::Arc;

use candle::{DType, Tensor};
use opara_candle::ops::{self, Sampling};
use opara_candle::{Builder, Mode, Report, StepExecutor, StepState};

use super::error::Result;
use super::parts::Parts;
use super::reading::{inputs, numbers, read, InSlots, Reading};
use super::sequence::Sequence;
use super::slots::{step, Slots};
use super::text_model::{Part, TextModel};

/// Steps that a GPU is given before the host waits for the first one's tokens.
const AHEAD: usize = 4;

/// Parts of prompts that are read together for the time of one, about: a GPU waits for weights.
const FEW: usize = 4;

/// Slots on the device, and how their texts read and write. Graphs are built at their first use.
pub(super) struct Graphs<M> {
    pub model: Arc<M>,
    pub slots: Slots,
    /// Sizes of a batch: powers of two from two on, and the number of slots. One row of 16 bits has kernels of its own, with which a
    /// text could write something else when its last neighbour leaves.
    buckets: Vec<usize>,
    /// How many parts of prompts may be read together, the least first.
    rows: Vec<usize>,
    /// Without it nothing is built.
    builder: Option<Builder>,
    /// Where each part of a prompt starts, and its pages.
    in_slots: InSlots,
    /// For each number of parts.
    reads: Vec<Option<StepExecutor<InSlots>>>,
    /// For each bucket one that draws from the logits alone, and one that weighs them.
    steps: Vec<[Option<StepExecutor<Slots>>; 2]>,
    /// No marks and no bias, for the most parts.
    plain: [Tensor; 2],
    /// Slots whose bias on the device is not zero.
    biased: Vec<bool>,
}

impl<M: TextModel> Graphs<M> {
    /// For a number of slots and, if the model has any, of pages.
    pub fn new(model: Arc<M>, slots: usize, parts: Parts, pages: usize, builder: Option<Builder>) -> Result<Self> {
        let buckets: Vec<usize> =
            std::iter::successors(Some(2), |b| Some(2 * b)).take_while(|b| *b < slots).chain([slots]).collect();
        let at_once = parts.at_once();
        let plain_rows = |dtype| Tensor::zeros((at_once, model.vocab()), dtype, model.device());
        let plain = [plain_rows(DType::U8)?, plain_rows(DType::F32)?];
        let memory = model.empty(slots, at_once, pages)?;
        let starts = Tensor::zeros(at_once, DType::U32, model.device())?;
        let in_slots = InSlots { starts, memory: memory.for_others(at_once)? };
        let mut rows: Vec<usize> =
            std::iter::successors(Some(1), |b| Some(2 * b)).take_while(|b| *b <= parts.alike).collect();
        rows.truncate(read_alike(&*model, &in_slots, &rows).unwrap_or(0));
        if rows.len() < 2 {
            rows = vec![parts.together];
        }
        let reads = rows.iter().map(|_| None).collect();
        let state = Slots::new(&*model, slots, memory)?;
        let steps = buckets.iter().map(|_| [None, None]).collect();
        let biased = vec![false; slots];
        Ok(Self { model, slots: state, buckets, rows, builder, in_slots, reads, steps, plain, biased })
    }

    /// The size of the smallest batch of at least `slots` slots.
    pub fn bucket(&self, slots: usize) -> usize {
        self.buckets.iter().copied().find(|bucket| *bucket >= slots).unwrap_or(slots)
    }

    /// Parts of prompts that are read together at most.
    pub fn most_read(&self) -> usize {
        self.rows[self.rows.len() - 1]
    }

    /// The rows of the graph that reads parts, of which this many wait: the smallest that has room for all. Where more than a quarter of it
    /// would be empty, it is the one before it, and other parts are read next. Few rows take as long as [`FEW`].
    pub fn rows_to_read(&self, parts: usize) -> usize {
        rows_to_read(&self.rows, parts)
    }

    /// Does a graph read as many parts as wait, and not a fixed number?
    pub fn reads_as_many_as_wait(&self) -> bool {
        self.rows.len() > 1
    }

    /// Builds all graphs: steps first, since all texts wait for them. More parts than there is memory for are not read together.
    pub fn build(&mut self) -> Result<()> {
        (0..self.buckets.len())
            .try_for_each(|at| [false, true].into_iter().try_for_each(|is| self.build_step(at, is)))?;
        let is_graph = |read: &Option<StepExecutor<InSlots>>| {
            read.as_ref().is_some_and(|read| read.report().mode() == Mode::Graph)
        };
        for at in 0..self.rows.len() {
            self.build_read(at)?;
            if at > 0 && is_graph(&self.reads[0]) && !is_graph(&self.reads[at]) {
                self.rows.truncate(at);
                self.reads.truncate(at);
                break;
            }
        }
        Ok(())
    }

    /// Reports of the graphs that are built: the reading one, and then the steps.
    pub fn reports(&self) -> impl Iterator<Item = Report> + '_ {
        let steps = self.steps.iter().flatten().flatten().map(StepExecutor::report);
        self.reads.iter().flatten().map(StepExecutor::report).chain(steps)
    }

    fn build_read(&mut self, at: usize) -> Result<()> {
        let Some(builder) = self.builder.clone().filter(|_| self.reads[at].is_none()) else { return Ok(()) };
        let (model, parts) = (&self.model, self.rows[at]);
        let (part, device) = (model.part(), model.device());
        let drawn = Sampling { temperature: 0.5, top_k: 9, repetition_penalty: 1.5, seed: 7, ..Sampling::default() };
        let tokens: Vec<u32> = (1..=part as u32 * 3 / 4).map(|token| token % model.vocab() as u32).collect();
        let seen = Tensor::ones((1, model.vocab()), DType::U8, device)?;
        let example = |tokens, sampling, seen: Option<&Tensor>| {
            let (seen, bias) = (seen.cloned(), seen.map(|seen| seen.to_dtype(DType::F32)).transpose()?);
            let one = || Reading { tokens, sampling, seen: seen.clone(), bias: bias.clone(), ..Reading::default() };
            inputs(&std::iter::repeat_with(one).take(parts).collect::<Vec<_>>(), part, &self.plain, device)
        };
        let first = example(&[0], Sampling::default(), None)?;
        // Of other values, so that the host code is seen not to depend on any.
        let further = example(&tokens, drawn, Some(&seen))?;
        let of = model.clone();
        let reads = move |inputs: &[Tensor], state: &InSlots| read(&*of, inputs, state);
        self.reads[at] = Some(builder.example(&further).build_step(reads, &first, &self.reading(0, parts)?)?);
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

    /// Reads into pages, or into the slots from one on; gives the tokens behind, which need not be there yet, and their logits.
    pub fn read(&mut self, from: usize, parts: &[Reading]) -> Result<[Tensor; 2]> {
        let at = self.rows.iter().position(|rows| *rows == parts.len()).unwrap_or(0);
        self.build_read(at)?;
        let inputs = inputs(parts, self.model.part(), &self.plain, self.model.device())?;
        let mut state = self.reading(from, parts.len())?;
        ops::assign(&state.starts, &numbers(parts, |part| part.start, self.model.device())?)?;
        state.memory.set_pages(parts.iter().map(|part| part.pages))?;
        let given = match &self.reads[at] {
            None => read(&*self.model, &inputs, &state)?,
            Some(executor) => executor.step(&inputs, &mut state)?,
        };
        Ok([given[0].clone(), given[1].clone()])
    }

    /// The logits behind each token of a part of a prompt, `(tokens, vocab)` of f32, read eagerly into its pages.
    pub fn score(&self, of: &Reading) -> Result<Tensor> {
        let Reading { tokens, start, pages, .. } = *of;
        let (part, device) = (self.model.part(), self.model.device());
        let filled = tokens.iter().copied().chain(std::iter::repeat(0)).take(part);
        let one = |number: usize| Tensor::new(&[number as u32], device);
        let (starts, counts) = (one(start)?, one(tokens.len())?);
        let memory = self.in_slots.memory.for_others(1)?;
        memory.set_pages(std::iter::once(pages))?;
        let last = Tensor::arange(0, tokens.len() as u32, device)?;
        let ids = Tensor::from_iter(filled, device)?.reshape((1, part))?;
        let part = Part { ids: &ids, starts: &starts, counts: &counts, last: &last };
        Ok(self.model.read(&part, &memory)?.to_dtype(DType::F32)?)
    }

    /// The state of [`read`] of a number of parts: of the slots from one on, where there are no pages.
    fn reading(&self, from: usize, parts: usize) -> Result<InSlots> {
        let InSlots { starts, memory } = &self.in_slots;
        let memory = match memory.pages {
            Some(_) => memory.of(0, parts)?,
            None => self.slots.memory.of(from, parts)?,
        };
        Ok(InSlots { starts: starts.narrow(0, 0, parts)?, memory })
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

/// [`Graphs::rows_to_read`] of these numbers of rows, the least first.
fn rows_to_read(rows: &[usize], parts: usize) -> usize {
    let at = rows.partition_point(|rows| *rows < parts).min(rows.len() - 1);
    let is_sparse = rows[at] > FEW && parts * 4 < rows[at] * 3;
    rows[if is_sparse { at.saturating_sub(1) } else { at }]
}

/// How many of these numbers of parts a model reads together, the least first, so that each part has the bits that it has alone.
fn read_alike(model: &impl TextModel, in_slots: &InSlots, rows: &[usize]) -> Result<usize> {
    if rows.len() < 2 {
        return Ok(rows.len());
    }
    let (part, vocab, device) = (model.part(), model.vocab(), model.device());
    let scratch = in_slots.scratch()?;
    let logits = |texts: std::ops::Range<usize>| -> Result<Vec<Vec<f32>>> {
        let token = |text: usize, at: usize| (text * 131 + at * 7 + 1) % vocab;
        let numbers = |of: &mut dyn Iterator<Item = usize>| Tensor::from_iter(of.map(|of| of as u32), device);
        let ids = texts.clone().flat_map(|text| (0..part).map(move |at| token(text, at)));
        let ids = numbers(&mut { ids })?.reshape((texts.len(), part))?;
        let counts = numbers(&mut texts.clone().map(|_| part))?;
        let last = numbers(&mut (1..=texts.len()).map(|row| row * part - 1))?;
        let starts = scratch.starts.narrow(0, 0, texts.len())?;
        let memory = scratch.memory.of(texts.start, texts.len())?;
        let part = Part { ids: &ids, starts: &starts, counts: &counts, last: &last };
        Ok(model.read(&part, &memory)?.to_dtype(DType::F32)?.to_vec2()?)
    };
    let bits = |row: &[f32]| row.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    let mut alone = Vec::new();
    let mut are_alike = |count: usize| -> Result<bool> {
        for (text, beside_others) in logits(0..count)?.iter().enumerate() {
            if text == alone.len() {
                alone.push(bits(&logits(text..text + 1)?[0]));
            }
            if alone[text] != bits(beside_others) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    // Also where there is no memory for more.
    Ok(rows.iter().take_while(|count| are_alike(**count).unwrap_or(false)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardly_any_rows_are_read_for_nothing() {
        let rows = [1, 2, 4, 8, 16, 32, 64];
        let read = |parts| rows_to_read(&rows, parts);
        assert_eq!([1, 2, 3, 4].map(read), [1, 2, 4, 4]);
        assert_eq!([5, 6, 8, 9, 11, 12, 16].map(read), [4, 8, 8, 8, 8, 16, 16]);
        assert_eq!([33, 47, 48, 64, 65, 1000].map(read), [32, 32, 64, 64, 64, 64]);
        assert_eq!(rows_to_read(&[8], 1), 8, "of one number there is no choice");
        assert_eq!(rows_to_read(&[8, 16], 9), 8);
    }
}
