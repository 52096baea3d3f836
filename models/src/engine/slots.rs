//! Slots: texts of a batch that come and go, as a step carries them on.

use candle::{DType, Result, Tensor};
use opara_candle::ops::{self, Sampler, Sampling};
use opara_candle::StepState;

use super::memory::{copy_row, Memory};
use super::text_model::TextModel;

/// A slot for each text of a batch: its memory, and all that differs between texts in a step. So the step is one graph, whichever
/// texts are in the slots.
#[derive(Clone)]
pub(super) struct Slots {
    /// The last token of each, `(slots, 1)`, u32.
    token: Tensor,
    /// Where it stands, `(slots)`, u32.
    position: Tensor,
    /// One where a text writes, zero where a slot stands still, `(slots)`, u32.
    writes: Tensor,
    /// `(slots, 8)`.
    sampler: Tensor,
    /// Which tokens the text has so far, and which end it, `(slots, vocab)`, u8: for texts with a repetition penalty, and for those
    /// that may not end yet.
    seen: Tensor,
    /// What is added to the logits of each, `(slots, vocab)`, f32.
    bias: Tensor,
    /// The model's.
    pub memory: Memory,
}

/// A slot as the host knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot<'a> {
    /// The last token.
    pub token: u32,
    /// Where it stands.
    pub position: u32,
    /// Whether steps add tokens. A step also writes to the memory of a slot that stands still, at its position: in a page that is no
    /// text's, or where its own text overwrites it first.
    pub writes: bool,
    pub sampling: Sampling,
    /// Whether tokens are barred that the tokens seen mark so.
    pub bars: bool,
    /// The pages of a text that writes: what a step writes to a slot that stands still is in no text's page.
    pub pages: &'a [u32],
}

impl Slots {
    pub fn new(model: &impl TextModel, slots: usize, memory: Memory) -> Result<Self> {
        let (device, vocab) = (model.device(), model.vocab());
        Ok(Self {
            token: Tensor::zeros((slots, 1), DType::U32, device)?,
            position: Tensor::zeros(slots, DType::U32, device)?,
            writes: Tensor::zeros(slots, DType::U32, device)?,
            sampler: Sampler::new(&vec![Sampling::default(); slots], device)?.parameters().clone(),
            seen: Tensor::zeros((slots, vocab), DType::U8, device)?,
            bias: Tensor::zeros((slots, vocab), DType::F32, device)?,
            memory,
        })
    }

    /// The first `slots` of them, in the same memory.
    pub fn first(&self, slots: usize) -> Result<Self> {
        let first = self.numbers().into_iter().map(|tensor| tensor.narrow(0, 0, slots)).collect::<Result<_>>()?;
        Ok(self.of(first, self.memory.of(0, slots)?))
    }

    /// All but the memory.
    fn numbers(&self) -> [&Tensor; 6] {
        [&self.token, &self.position, &self.writes, &self.sampler, &self.seen, &self.bias]
    }

    fn of(&self, numbers: Vec<Tensor>, memory: Memory) -> Self {
        let [token, position, writes, sampler, seen, bias] = [0, 1, 2, 3, 4, 5].map(|at| numbers[at].clone());
        Self { token, position, writes, sampler, seen, bias, memory }
    }

    /// Copies the host's view of all slots to the device.
    pub fn upload(&self, slots: &[Slot]) -> Result<()> {
        let device = self.token.device();
        let numbers = |of: &dyn Fn(&Slot) -> u32| Tensor::from_iter(slots.iter().map(of), device);
        ops::assign(&self.token, &numbers(&|slot| slot.token)?.unsqueeze(1)?)?;
        ops::assign(&self.position, &numbers(&|slot| slot.position)?)?;
        ops::assign(&self.writes, &numbers(&|slot| slot.writes.into())?)?;
        let (sampling, bars): (Vec<Sampling>, Vec<bool>) = slots.iter().map(|slot| (slot.sampling, slot.bars)).unzip();
        ops::assign(&self.sampler, Sampler::barring(&sampling, &bars, device)?.parameters())?;
        self.memory.set_pages(slots.iter().map(|slot| slot.pages))
    }

    /// The tokens that a slot's repetition penalty is for, and those that it may bar: `(1, vocab)` of u8.
    pub fn set_seen(&self, slot: usize, seen: &Tensor) -> Result<()> {
        self.seen.slice_set(seen, 0, slot)
    }

    /// What is added to the logits of a slot: `(1, vocab)` of f32.
    pub fn set_bias(&self, slot: usize, bias: &Tensor) -> Result<()> {
        self.bias.slice_set(bias, 0, slot)
    }

    /// Gives a slot the memory, the tokens seen and the bias of another one. Its pages are uploaded with all others.
    pub fn copy(&self, from: usize, to: usize) -> Result<()> {
        [&self.seen, &self.bias].into_iter().try_for_each(|tensor| copy_row(tensor, from, to))?;
        self.memory.copy(from, to)
    }
}

impl StepState for Slots {
    fn tensors(&self) -> Vec<Tensor> {
        self.numbers().into_iter().cloned().chain(self.memory.tensors()).collect()
    }

    fn with(&self, mut tensors: Vec<Tensor>) -> Self {
        let memory = self.memory.with(tensors.split_off(self.numbers().len()));
        self.of(tensors, memory)
    }

    /// Empty slots: texts may be under way, and they may have left anything behind.
    fn scratch(&self) -> opara_candle::Result<Self> {
        let numbers = self.numbers().map(Tensor::zeros_like).into_iter().collect::<Result<Vec<_>>>()?;
        let scratch = self.of(numbers, self.memory.scratch()?);
        ops::assign(&scratch.sampler, &self.sampler)?;
        Ok(scratch)
    }
}

/// Adds a token to each text that writes. Where they are `weighed`, tokens are drawn by marks and bias, and are marked; then the logits
/// are given as well.
pub(super) fn step(model: &impl TextModel, slots: &Slots, is_weighed: bool) -> Result<Vec<Tensor>> {
    let Slots { token, position, writes, sampler, seen, bias, memory } = slots;
    let logits = model.step(token, position, memory)?;
    let sampler = Sampler::of(sampler.clone())?;
    let given = match is_weighed {
        true => weighed(&logits, &sampler, position, seen, bias)?.to_vec(),
        false => vec![ops::sample(&logits, &sampler, position, None)?],
    };
    if is_weighed {
        ops::mark_seen(seen, &given[0])?;
    }
    ops::assign(token, &ops::unsqueeze(&given[0], 1)?)?;
    ops::assign(position, &ops::add(position, writes)?)?;
    Ok(given)
}

/// Tokens drawn by marks and bias, and the logits in f32.
pub(super) fn weighed(
    logits: &Tensor,
    sampler: &Sampler,
    positions: &Tensor,
    seen: &Tensor,
    bias: &Tensor,
) -> Result<[Tensor; 2]> {
    let logits = match logits.dtype() {
        DType::F32 => logits.clone(),
        _ => ops::to_dtype(logits, DType::F32)?,
    };
    Ok([ops::sample(&ops::add(&logits, bias)?, sampler, positions, Some(seen))?, logits])
}
