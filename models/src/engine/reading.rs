//! Reading: parts of the prompts of some slots, and the tokens that follow them.

use candle::{Device, Result, Tensor};
use opara_candle::ops::{Sampler, Sampling};

use super::slots::{weighed, Slot};
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
    /// `(1, vocab)` of f32.
    pub bias: Option<Tensor>,
}

impl Reading<'_> {
    /// Reads nothing.
    pub fn none(slot: Slot) -> Self {
        let start = slot.position as usize;
        Self { tokens: &[], start, position: start, sampling: Sampling::default(), bars: false, seen: None, bias: None }
    }
}

/// The inputs of [`read`], of parts of `part` tokens. `plain` has marks and bias, a row for each, of parts without any.
pub(super) fn inputs(of: &[Reading], part: usize, plain: &[Tensor; 2], device: &Device) -> Result<Vec<Tensor>> {
    let filled = |of: &Reading| of.tokens.iter().copied().chain(std::iter::repeat(0)).take(part).collect::<Vec<_>>();
    let last = of.iter().enumerate().map(|(row, of)| (row * part + of.tokens.len().saturating_sub(1)) as u32);
    let (sampling, bars): (Vec<_>, Vec<_>) = of.iter().map(|of| (of.sampling, of.bars)).unzip();
    let rows = |plain: &Tensor, own: fn(&Reading) -> Option<Tensor>| match of.iter().any(|of| own(of).is_some()) {
        true => {
            let row = |(row, of): (usize, &Reading)| own(of).map_or_else(|| plain.narrow(0, row, 1), Ok);
            Tensor::cat(&of.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?, 0)
        }
        false => Ok(plain.clone()),
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
/// other slot is touched. The state is where the parts start, and the memory. All layers read the former, so it stays where it is: a
/// replay would change the launches of each layer for another address.
pub(super) fn read(model: &impl TextModel, inputs: &[Tensor], state: &[Tensor]) -> Result<Vec<Tensor>> {
    let [ids, counts, last, positions, sampler, seen, bias] = [0, 1, 2, 3, 4, 5, 6].map(|at| &inputs[at]);
    let logits = model.read(&Part { ids, starts: &state[0], counts, last }, &state[1..])?;
    Ok(weighed(&logits, &Sampler::of(sampler.clone())?, positions, seen, bias)?.to_vec())
}
