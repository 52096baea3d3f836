//! Decoders as the models of an engine.

use candle::{Device, Result, Tensor};
use opara_candle::ops;

use super::cache::{Cache, CHUNK};
use super::Decoder;
use crate::engine::{self, Part, TextError, TextModel};

impl TextModel for Decoder {
    const IS_CAUSAL: bool = true;

    fn device(&self) -> &Device {
        &self.device
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn part(&self) -> usize {
        CHUNK
    }

    fn first_position(&self, prompt: usize) -> usize {
        prompt
    }

    fn fits(&self, prompt: usize, answer: usize) -> engine::Result<()> {
        let (context, most) = (self.context, self.config.max_positions);
        match prompt.saturating_add(answer) <= context {
            true => Ok(()),
            false => Err(TextError::TooLong { prompt, answer, context, most }),
        }
    }

    fn memory(&self, texts: usize) -> Result<Vec<Tensor>> {
        Ok(self.cache(texts)?.layers)
    }

    fn read(&self, part: &Part, memory: &[Tensor]) -> Result<Tensor> {
        let own = ops::unsqueeze(&part.own()?, 2)?;
        let cache = Cache { layers: memory.to_vec(), position: part.starts.clone() };
        let hidden = self.forward_part(part.ids, Some(&own), &cache)?;
        let (texts, tokens, size) = hidden.dims3()?;
        self.logits(&ops::index_select(&ops::reshape(&hidden, (texts * tokens, size))?, part.last, 0)?)
    }

    fn step(&self, tokens: &Tensor, positions: &Tensor, memory: &[Tensor]) -> Result<Tensor> {
        let cache = Cache { layers: memory.to_vec(), position: positions.clone() };
        ops::squeeze(&self.logits(&self.forward(tokens, &cache)?)?, 1)
    }
}
