//! Decoders as the models of an engine.

use candle::{Device, Result, Tensor};
use opara_candle::ops::{self, PAGE};

use super::cache::{Cache, CHUNK};
use super::{room, Decoder};
use crate::engine::{self, Memory, Part, TextError, TextModel};

impl Decoder {
    /// Bytes of the keys and values of all layers in a [page](PAGE).
    pub fn page_bytes(&self) -> u64 {
        PAGE as u64 * Cache::place_bytes(&self.config, self.dtype)
    }

    /// Free bytes of its device, if the system tells.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn free_bytes(&self) -> super::error::Result<Option<u64>> {
        room::free(&self.device)
    }
}

impl TextModel for Decoder {
    fn device(&self) -> &Device {
        &self.device
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn part(&self) -> usize {
        CHUNK
    }

    fn pages(&self) -> Option<usize> {
        Some(self.context.div_ceil(PAGE))
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

    fn memory(&self, count: usize) -> Result<Vec<Tensor>> {
        Cache::pages(&self.config, count, self.dtype, &self.device)
    }

    fn read(&self, part: &Part, memory: &Memory) -> Result<Tensor> {
        let cache = Cache::in_pages(memory, part.starts);
        let hidden = self.forward_part(part.ids, Some(part.counts), &cache)?;
        let (texts, tokens, size) = hidden.dims3()?;
        let last = ops::index_select(&ops::reshape(&hidden, (texts * tokens, size))?, part.last, 0)?;
        // On a GPU one row alone has kernels of its own: it has the bits of several.
        let rows = part.last.dim(0)?;
        if rows == 1 && self.device.is_cuda() {
            return ops::narrow(&self.logits(&ops::cat(&[&last, &last], 0)?)?, 0, 0, 1);
        }
        self.logits(&last)
    }

    fn step(&self, tokens: &Tensor, positions: &Tensor, memory: &Memory) -> Result<Tensor> {
        ops::squeeze(&self.logits(&self.forward(tokens, &Cache::in_pages(memory, positions))?)?, 1)
    }
}
