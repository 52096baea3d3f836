//! Reading: parts of the prompts of some slots, and the tokens that follow them.

use candle::{Device, Result, Tensor};
use opara_candle::ops::{self, Sampler, Sampling};

use super::slots::Slot;
use super::text_model::{Part, TextModel};

/// A part of a prompt, read into a slot at once.
pub(super) struct Reading<'a> {
    /// At most [`TextModel::part`]; none if nothing is read.
    pub tokens: &'a [u32],
    /// Where the first one stands.
    pub start: usize,
    /// Where the token behind them is drawn.
    pub position: usize,
    pub sampling: Sampling,
    pub bars: bool,
    /// `(1, vocab)` of u8.
    pub seen: Option<Tensor>,
}

impl Reading<'_> {
    /// Reads nothing.
    pub fn none(slot: Slot) -> Self {
        let start = slot.position as usize;
        Self { tokens: &[], start, position: start, sampling: Sampling::default(), bars: false, seen: None }
    }
}

/// The inputs of [`read`], of parts of `part` tokens. `unseen`, a row for each, stands for parts that mark no tokens.
pub(super) fn inputs(of: &[Reading], part: usize, unseen: &Tensor, device: &Device) -> Result<Vec<Tensor>> {
    let filled = |of: &Reading| of.tokens.iter().copied().chain(std::iter::repeat(0)).take(part).collect::<Vec<_>>();
    let last = of.iter().enumerate().map(|(row, of)| (row * part + of.tokens.len().saturating_sub(1)) as u32);
    let (sampling, bars): (Vec<_>, Vec<_>) = of.iter().map(|of| (of.sampling, of.bars)).unzip();
    let row_seen = |(row, of): (usize, &Reading)| of.seen.clone().map_or_else(|| unseen.narrow(0, row, 1), Ok);
    let seen = match of.iter().any(|of| of.seen.is_some()) {
        true => Tensor::cat(&of.iter().enumerate().map(row_seen).collect::<Result<Vec<_>>>()?, 0)?,
        false => unseen.clone(),
    };
    Ok(vec![
        Tensor::from_iter(of.iter().flat_map(filled), device)?.reshape((of.len(), part))?,
        numbers(of, |of| of.tokens.len(), device)?,
        Tensor::from_iter(last, device)?,
        numbers(of, |of| of.position, device)?,
        Sampler::barring(&sampling, &bars, device)?.parameters().clone(),
        seen,
    ])
}

/// A number of each, `(slots)`.
pub(super) fn numbers(of: &[Reading], number: impl Fn(&Reading) -> usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter(of.iter().map(|of| number(of) as u32), device)
}

/// Reads a part of a prompt into the memory of each of some slots, and draws the token behind it, as a step would. No other slot is
/// touched. The state is where the parts start, and the memory. All layers read the former, so it stays where it is: a replay would
/// change the launches of each layer for another address.
pub(super) fn read(model: &impl TextModel, inputs: &[Tensor], state: &[Tensor]) -> Result<Vec<Tensor>> {
    let [ids, counts, last, positions, sampler, seen] = [0, 1, 2, 3, 4, 5].map(|at| &inputs[at]);
    let logits = model.read(&Part { ids, starts: &state[0], counts, last }, &state[1..])?;
    Ok(vec![ops::sample(&logits, &Sampler::of(sampler.clone())?, positions, Some(seen))?])
}
