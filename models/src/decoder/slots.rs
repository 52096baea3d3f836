//! Slots: sequences of a batch that come and go, as a step carries them on.

use candle::{DType, Device, Tensor};
use opara_candle::ops::{self, Sampler, Sampling};
use opara_candle::StepState;

use super::cache::{Cache, CHUNK};
use super::error::Result;
use super::Decoder;

/// A slot for each sequence of a batch: its keys and values, and all that differs between sequences in a step. So the step is one
/// graph, whichever sequences are in the slots.
#[derive(Clone)]
pub(super) struct Slots {
    /// The last token of each, `(slots, 1)`, u32.
    token: Tensor,
    cache: Cache,
    /// One where a sequence writes, zero where a slot stands still, `(slots)`, u32.
    writes: Tensor,
    /// `(slots, 8)`.
    sampler: Tensor,
    /// Which tokens the text has so far, and which end it, `(slots, vocab)`, u8: for sequences with a repetition penalty, and for
    /// those that may not end yet.
    seen: Tensor,
}

/// A slot as the host knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    /// The last token.
    pub token: u32,
    /// Where it stands.
    pub position: u32,
    /// Whether steps add tokens. A step also writes keys and values of a slot that stands still, at its position: no other
    /// sequence reads them, and its own one overwrites them first.
    pub writes: bool,
    pub sampling: Sampling,
    /// Whether tokens are barred that the tokens seen mark so.
    pub bars: bool,
}

impl Slots {
    pub fn new(model: &Decoder, slots: usize) -> Result<Self> {
        let (device, vocab) = (model.device(), model.config.vocab);
        Ok(Self {
            token: Tensor::zeros((slots, 1), DType::U32, device)?,
            cache: model.cache(slots)?,
            writes: Tensor::zeros(slots, DType::U32, device)?,
            sampler: Sampler::new(&vec![Sampling::default(); slots], device)?.parameters().clone(),
            seen: Tensor::zeros((slots, vocab), DType::U8, device)?,
        })
    }

    /// The first `slots` of them, in the same memory.
    pub fn first(&self, slots: usize) -> candle::Result<Self> {
        let first = self.tensors().iter().map(|tensor| tensor.narrow(0, 0, slots)).collect::<candle::Result<_>>()?;
        Ok(self.with(first))
    }

    /// The keys and values of one slot, in the same memory: of each layer `(1, 2, kv_heads, capacity, head_dim)`.
    pub fn keys_and_values(&self, slot: usize) -> candle::Result<Vec<Tensor>> {
        self.cache.layers.iter().map(|layer| layer.narrow(0, slot, 1)).collect()
    }

    /// Copies the host's view of all slots to the device.
    pub fn upload(&self, slots: &[Slot]) -> candle::Result<()> {
        let device = self.token.device();
        let numbers = |of: &dyn Fn(&Slot) -> u32| Tensor::from_iter(slots.iter().map(of), device);
        ops::assign(&self.token, &numbers(&|slot| slot.token)?.unsqueeze(1)?)?;
        ops::assign(&self.cache.position, &numbers(&|slot| slot.position)?)?;
        ops::assign(&self.writes, &numbers(&|slot| slot.writes.into())?)?;
        let (sampling, bars): (Vec<Sampling>, Vec<bool>) = slots.iter().map(|slot| (slot.sampling, slot.bars)).unzip();
        ops::assign(&self.sampler, Sampler::barring(&sampling, &bars, device)?.parameters())
    }

    /// The tokens that a slot's repetition penalty is for, and those that it may bar: `(1, vocab)` of u8.
    pub fn set_seen(&self, slot: usize, seen: &Tensor) -> candle::Result<()> {
        self.seen.slice_set(seen, 0, slot)
    }

    /// Gives a slot the keys and values, and the tokens seen, of another one.
    pub fn copy(&self, from: usize, to: usize) -> candle::Result<()> {
        self.cache.layers.iter().chain([&self.seen]).try_for_each(|tensor| {
            // By a copy, since memory is not read and written at once.
            tensor.slice_set(&tensor.narrow(0, from, 1)?.force_contiguous()?, 0, to)
        })
    }
}

impl StepState for Slots {
    fn tensors(&self) -> Vec<Tensor> {
        let few = [&self.token, &self.cache.position, &self.writes, &self.sampler, &self.seen];
        few.into_iter().chain(&self.cache.layers).cloned().collect()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let [token, position, writes, sampler, seen] = [0, 1, 2, 3, 4].map(|at| tensors[at].clone());
        Self { token, cache: Cache { layers: tensors[5..].to_vec(), position }, writes, sampler, seen }
    }
}

/// Adds a token to each sequence that writes.
pub(super) fn step(model: &Decoder, slots: &Slots) -> candle::Result<Vec<Tensor>> {
    let Slots { token, cache, writes, sampler, seen } = slots;
    let hidden = model.forward(token, cache)?;
    let logits = ops::squeeze(&model.logits(&hidden)?, 1)?;
    let drawn = ops::sample(&logits, &Sampler::of(sampler.clone())?, &cache.position, Some(seen))?;
    ops::mark_seen(seen, &drawn)?;
    ops::assign(token, &ops::unsqueeze(&drawn, 1)?)?;
    ops::assign(&cache.position, &ops::add(&cache.position, writes)?)?;
    Ok(vec![drawn])
}

/// A part of the prompt of one sequence.
pub(super) struct Part<'a> {
    /// At most [`CHUNK`].
    pub tokens: &'a [u32],
    /// Where the first one stands.
    pub start: usize,
    pub sampling: Sampling,
    pub bars: bool,
    /// `(1, vocab)` of u8.
    pub seen: &'a Tensor,
}

impl Part<'_> {
    /// The inputs of [`read`].
    pub fn inputs(&self, device: &Device) -> candle::Result<Vec<Tensor>> {
        let filled = self.tokens.iter().copied().chain(std::iter::repeat(0)).take(CHUNK);
        Ok(vec![
            Tensor::from_iter(filled, device)?.unsqueeze(0)?,
            Tensor::new(&[self.start as u32], device)?,
            Tensor::new(&[self.tokens.len().saturating_sub(1) as u32], device)?,
            Sampler::barring(&[self.sampling], &[self.bars], device)?.parameters().clone(),
            self.seen.clone(),
        ])
    }
}

/// Which tokens of a part, `(batch, tokens)`, are a text's own, `(batch, tokens, 1)` of u8: those for which `is_own` of their indices,
/// `(1, tokens)`, and of `by`, `(batch, 1)`, is 1.
pub(super) fn own_tokens(
    ids: &Tensor,
    by: &Tensor,
    is_own: impl Fn(&Tensor, &Tensor) -> candle::Result<Tensor> + Send + Sync + 'static,
) -> candle::Result<Tensor> {
    let tokens = ids.dim(1)? as u32;
    ops::custom("own_tokens", &[by], move |t| {
        is_own(&Tensor::arange(0, tokens, t[0].device())?.unsqueeze(0)?, t[0])?.unsqueeze(2)
    })
}

/// Reads a part of a prompt into the keys and values of one slot, and draws the token behind it, as a step would. No other slot is
/// touched. The inputs are tokens `(1, CHUNK)`, where the first one stands, which is the last that counts, how to draw, and the
/// tokens seen.
pub(super) fn read(model: &Decoder, inputs: &[Tensor], layers: &[Tensor]) -> candle::Result<Vec<Tensor>> {
    let [ids, start, last, sampler, seen] = [0, 1, 2, 3, 4].map(|at| &inputs[at]);
    let own = own_tokens(ids, &ops::unsqueeze(last, 1)?, |places, last| places.broadcast_le(last))?;
    let hidden = model.forward_part(ids, Some(&own), &Cache { layers: layers.to_vec(), position: start.clone() })?;
    let (_, tokens, size) = hidden.dims3()?;
    let hidden = ops::index_select(&ops::reshape(&hidden, (tokens, size))?, last, 0)?;
    let position = ops::add(start, last)?;
    let token = ops::sample(&model.logits(&hidden)?, &Sampler::of(sampler.clone())?, &position, Some(seen))?;
    Ok(vec![token])
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;

    /// The keys and values of a slot, as numbers: of each place, all layers.
    fn places(slots: &Slots, slot: usize) -> Vec<Vec<f32>> {
        let layers = slots.keys_and_values(slot).expect("it is there");
        let by_place = layers.iter().map(|layer| layer.permute((3, 0, 1, 2, 4)).and_then(|t| t.flatten_from(1)));
        let by_place = by_place.collect::<candle::Result<Vec<_>>>().expect("layers");
        Tensor::cat(&by_place, 1).and_then(|t| t.to_vec2()).expect("numbers")
    }

    #[test]
    fn reading_and_writing_touch_no_other_slot() {
        let (config, device) = (Config::tiny(), Device::Cpu);
        let model = Decoder::load(opara_weights::seeded(3, DType::F32, &device), &config, 256).expect("a model");
        let slots = Slots::new(&model, 3).expect("slots");
        let seen = Tensor::zeros((1, config.vocab), DType::U8, &device).expect("a tensor");
        let sampling = Sampling::default();
        let read = |slot: usize, start: usize| {
            let part = Part { tokens: &[5; CHUNK], start, sampling, bars: false, seen: &seen };
            let inputs = part.inputs(&device).expect("inputs");
            super::read(&model, &inputs, &slots.keys_and_values(slot).expect("it is there")).expect("a token");
        };
        (0..3).for_each(|slot| read(slot, 0));
        let before: Vec<_> = (0..3).map(|slot| places(&slots, slot)).collect();
        read(1, CHUNK);
        let after: Vec<_> = (0..3).map(|slot| places(&slots, slot)).collect();
        assert!(after[0] == before[0] && after[2] == before[2], "reading touched another slot");
        assert!(after[1][..CHUNK] == before[1][..CHUNK] && after[1] != before[1], "reading touched what was read");

        // The first one writes, the second one is being read, the third one is free.
        let at = |position: usize, writes| Slot { token: 9, position: position as u32, writes, sampling, bars: false };
        slots.upload(&[at(CHUNK, true), at(2 * CHUNK, false), at(CHUNK, false)]).expect("the slots are uploaded");
        let before = after;
        for _ in 0..3 {
            step(&model, &slots).expect("tokens");
        }
        for (slot, first) in [(0, CHUNK), (1, 2 * CHUNK), (2, CHUNK)] {
            let (after, last) = (places(&slots, slot), if slot == 0 { first + 3 } else { first + 1 });
            assert!(after[..first] == before[slot][..first], "a step touched what slot {slot} had");
            assert!(after[last..] == before[slot][last..], "a step wrote too much to slot {slot}");
            assert!(after[first..last] != before[slot][first..last], "a step wrote nothing to slot {slot}");
        }
        assert_eq!(slots.cache.position.to_vec1::<u32>().expect("numbers"), [CHUNK as u32 + 3, 256, CHUNK as u32]);
    }
}
