//! Reading: parts of the prompts of some slots, and the tokens that follow them.

use candle::{Device, Result, Tensor};
use opara_candle::ops::{Sampler, Sampling};
use opara_candle::StepState;

use super::memory::Memory;
use super::slots::weighed;
use super::text_model::{Part, TextModel};

/// A part of a prompt, read into a slot at once. Without tokens it reads nothing.
#[derive(Default)]
pub(super) struct Reading<'a> {
    /// At most [`TextModel::part`].
    pub tokens: &'a [u32],
    /// Whether they are the last of the prompt.
    pub is_last: bool,
    /// Where the first one stands.
    pub start: usize,
    /// The pages that it has.
    pub pages: &'a [u32],
    /// Where the token behind them is drawn.
    pub position: usize,
    pub sampling: Sampling,
    pub bars: bool,
    /// `(1, vocab)` of u8.
    pub seen: Option<Tensor>,
    /// `(1, vocab)` of f32.
    pub bias: Option<Tensor>,
}

/// The state of [`read`]. All layers read where parts start and which pages they have, so these stay where they are: a replay would change
/// the launches of each layer for another address.
#[derive(Clone)]
pub(super) struct InSlots {
    /// Where a part of each starts, `(prompts)` of u32.
    pub starts: Tensor,
    pub memory: Memory,
}

impl StepState for InSlots {
    fn tensors(&self) -> Vec<Tensor> {
        [vec![self.starts.clone()], self.memory.tensors()].concat()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        Self { starts: tensors[0].clone(), memory: self.memory.with(tensors[1..].to_vec()) }
    }

    fn scratch(&self) -> opara_candle::Result<Self> {
        Ok(Self { starts: self.starts.zeros_like()?, memory: self.memory.scratch()? })
    }
}

/// The inputs of [`read`], of parts of `part` tokens. `plain` has marks and bias of parts without any, of as many or more.
pub(super) fn inputs(of: &[Reading], part: usize, plain: &[Tensor; 2], device: &Device) -> Result<Vec<Tensor>> {
    let filled = |of: &Reading| of.tokens.iter().copied().chain(std::iter::repeat(0)).take(part).collect::<Vec<_>>();
    let last = of.iter().enumerate().map(|(row, of)| (row * part + of.tokens.len().saturating_sub(1)) as u32);
    let (sampling, bars): (Vec<_>, Vec<_>) = of.iter().map(|of| (of.sampling, of.bars)).unzip();
    let rows = |plain: &Tensor, own: fn(&Reading) -> Option<Tensor>| match of.iter().any(|of| own(of).is_some()) {
        true => {
            let row = |(row, of): (usize, &Reading)| own(of).map_or_else(|| plain.narrow(0, row, 1), Ok);
            Tensor::cat(&of.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?, 0)
        }
        false => plain.narrow(0, 0, of.len()),
    };
    Ok(vec![
        Tensor::from_iter(of.iter().flat_map(filled), device)?.reshape((of.len(), part))?,
        numbers(of, |of| of.tokens.len(), device)?,
        Tensor::from_iter(last, device)?,
        numbers(of, |of| of.position, device)?,
        Sampler::barring(&sampling, &bars, device)?.parameters().clone(),
        rows(&plain[0], |of| of.seen.clone())?,
        rows(&plain[1], |of| of.bias.clone())?,
    ])
}

/// A number of each, `(slots)`.
pub(super) fn numbers(of: &[Reading], number: impl Fn(&Reading) -> usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter(of.iter().map(|of| number(of) as u32), device)
}

/// Reads a part of a prompt into the memory of each of some slots, and draws the token behind it, as a step would: tokens and logits. No
/// other slot is touched.
pub(super) fn read(model: &impl TextModel, inputs: &[Tensor], state: &InSlots) -> Result<Vec<Tensor>> {
    let [ids, counts, last, positions, sampler, seen, bias] = [0, 1, 2, 3, 4, 5, 6].map(|at| &inputs[at]);
    let logits = model.read(&Part { ids, starts: &state.starts, counts, last }, &state.memory)?;
    Ok(weighed(&logits, &Sampler::of(sampler.clone())?, positions, seen, bias)?.to_vec())
}
