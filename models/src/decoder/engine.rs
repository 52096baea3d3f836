//! The graphs of a batch of slots: one reads a part of a prompt, and one for each size of batch adds tokens.

use std::sync::Arc;

use candle::Tensor;
use opara_candle::ops::{Sampling, BARRED};
use opara_candle::{Builder, Mode, StepExecutor};

use super::error::Result;
use super::slots::{read, step, Part, Slot, Slots};
use super::Decoder;

/// Steps that a GPU is given before the host waits for the first one's tokens.
pub(super) const AHEAD: usize = 4;

/// Slots on the device, and how their sequences read and write.
pub(super) struct Engine {
    pub model: Arc<Decoder>,
    slots: Slots,
    /// Sizes of a batch: powers of two from two on, and the number of slots. One row of 16 bits has kernels of its own, with which a
    /// sequence could write something else when its last neighbour leaves.
    buckets: Vec<usize>,
    /// Without them steps run eagerly.
    executors: Option<Box<Executors>>,
    /// No token: `(1, vocab)`.
    none_seen: Tensor,
}

struct Executors {
    /// The state is the keys and values of one slot.
    read: StepExecutor<Vec<Tensor>>,
    /// One for each bucket.
    steps: Vec<StepExecutor<Slots>>,
}

impl Engine {
    /// By executors with these settings, or eagerly.
    pub fn new(model: Arc<Decoder>, slots: usize, builder: Option<&Builder>) -> Result<Self> {
        let buckets: Vec<usize> =
            std::iter::successors(Some(2), |b| Some(2 * b)).take_while(|b| *b < slots).chain([slots]).collect();
        let none_seen = marks(&model, [], &[])?;
        let state = Slots::new(&model, slots)?;
        let build = |builder| Executors::build(&model, &state, &buckets, builder);
        let executors = builder.map(build).transpose()?.map(Box::new);
        Ok(Self { model, slots: state, buckets, executors, none_seen })
    }

    pub fn slots(&self) -> usize {
        self.buckets.last().copied().unwrap_or(1)
    }

    /// The size of the smallest batch that has so many slots.
    pub fn bucket(&self, slots: usize) -> usize {
        self.buckets.iter().copied().find(|bucket| *bucket >= slots).unwrap_or(self.slots())
    }

    /// Why steps run eagerly though executors were asked for; one reason for each.
    pub fn eager(&self) -> Vec<String> {
        let Some(Executors { read, steps }) = self.executors.as_deref() else { return Vec::new() };
        let reports = std::iter::once(read.report()).chain(steps.iter().map(StepExecutor::report));
        let eager = reports.filter(|report| report.mode() == Mode::Eager);
        eager.map(|report| report.reason().unwrap_or_default().to_owned()).collect()
    }

    /// Copies the host's view of all slots to the device.
    pub fn upload(&self, slots: &[Slot]) -> Result<()> {
        Ok(self.slots.upload(slots)?)
    }

    /// Tokens as [`Part::seen`] and [`set_seen`](Self::set_seen) take them: those of the text so far, and those to bar.
    pub fn marks(&self, seen: impl IntoIterator<Item = u32>, barred: &[u32]) -> Result<Tensor> {
        Ok(marks(&self.model, seen, barred)?)
    }

    pub fn none_seen(&self) -> &Tensor {
        &self.none_seen
    }

    pub fn set_seen(&self, slot: usize, seen: &Tensor) -> Result<()> {
        Ok(self.slots.set_seen(slot, seen)?)
    }

    pub fn copy(&self, from: usize, to: usize) -> Result<()> {
        Ok(self.slots.copy(from, to)?)
    }

    /// Reads a part of a prompt into a slot; gives the token behind it, which need not be there yet.
    pub fn read(&self, slot: usize, part: &Part) -> Result<Tensor> {
        let inputs = part.inputs(self.model.device())?;
        let mut layers = self.slots.keys_and_values(slot)?;
        let mut given = match &self.executors {
            None => read(&self.model, &inputs, &layers)?,
            Some(executors) => executors.read.step(&inputs, &mut layers)?,
        };
        Ok(given.swap_remove(0))
    }

    /// Steps the slots of a bucket, at most so many times. `each` gets a step's tokens, one a slot, and says whether more steps are
    /// wanted. It also gets the tokens of steps that were enqueued by then.
    pub fn write(&self, bucket: usize, at_most: usize, mut each: impl FnMut(&[u32]) -> bool) -> Result<()> {
        let mut slots = self.slots.first(bucket)?;
        match &self.executors {
            None => {
                for _ in 0..at_most {
                    if !each(&step(&self.model, &slots)?[0].to_vec1()?) {
                        break;
                    }
                }
            }
            Some(executors) => {
                let at = self.buckets.iter().position(|of| *of == bucket).unwrap_or(0);
                let mut stream = executors.steps[at].stream(&mut slots, AHEAD).at_most(at_most);
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

impl Executors {
    fn build(model: &Arc<Decoder>, slots: &Slots, buckets: &[usize], builder: &Builder) -> Result<Self> {
        let part = |tokens: &[u32], start, sampling, seen: &Tensor| {
            Part { tokens, start, sampling, bars: false, seen }.inputs(model.device())
        };
        let first = part(&[0], 0, Sampling::default(), &marks(model, [], &[])?)?;
        // Of other values, so that the host code is seen not to depend on any. There are places for a whole part behind its start.
        let drawn = Sampling { temperature: 0.5, top_k: 9, repetition_penalty: 1.5, seed: 7, ..Sampling::default() };
        let tokens: Vec<u32> = (1..=99).map(|token| token % model.config.vocab as u32).collect();
        let further = part(&tokens, 64, drawn, &marks(model, tokens.iter().copied(), &[])?)?;
        let of = model.clone();
        let reads = move |inputs: &[Tensor], layers: &Vec<Tensor>| read(&of, inputs, layers);
        let read = builder.clone().example(&further).build_step(reads, &first, &slots.keys_and_values(0)?)?;
        let steps = buckets.iter().map(|&bucket| {
            let of = model.clone();
            let steps = move |_: &[Tensor], slots: &Slots| step(&of, slots);
            Ok(builder.clone().build_step(steps, &[], &slots.first(bucket)?)?)
        });
        Ok(Self { read, steps: steps.collect::<Result<_>>()? })
    }
}

/// Marks tokens as seen, and as barred: `(1, vocab)` of u8. A token that the vocabulary does not have cannot be drawn.
fn marks(model: &Decoder, seen: impl IntoIterator<Item = u32>, barred: &[u32]) -> candle::Result<Tensor> {
    let mut marks = vec![0u8; model.config.vocab];
    for token in seen {
        marks[token as usize] = 1;
    }
    for token in barred {
        if let Some(mark) = marks.get_mut(*token as usize) {
            *mark |= BARRED;
        }
    }
    Tensor::from_vec(marks, (1, model.config.vocab), model.device())
}
