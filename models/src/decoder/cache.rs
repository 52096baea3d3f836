//! The keys and values of the tokens so far.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::PAGE;

use super::config::Config;
use crate::engine::Memory;

/// Tokens of a prompt that are read at once. A last part is filled up to so many, whose keys and values, zeros, are written behind
/// the text. There is room for them; of pages a text has none behind its own.
pub(super) const CHUNK: usize = 128;

/// Keys and values of a batch of sequences, and how long each sequence is: all on the device, and of one size from the first
/// token to the last.
#[derive(Debug, Clone)]
pub struct Cache {
    /// For each layer `(batch, 2, kv_heads, capacity, head_dim)`, or pages.
    pub(super) layers: Vec<Tensor>,
    /// The pages of each sequence.
    pub(super) pages: Option<Tensor>,
    /// `(batch)`: where the next token of each sequence stands, as u32.
    pub(super) position: Tensor,
}

impl Cache {
    /// An empty one for `batch` sequences of up to `context` tokens.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(config: &Config, batch: usize, context: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (batch, 2, config.kv_heads, Self::places(context), config.head_dim);
        let layers = config.layers.iter().map(|_| Tensor::zeros(shape, dtype, device));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layers, pages: None, position: Tensor::zeros(batch, DType::U32, device)? })
    }

    /// Empty pages of all layers.
    pub(super) fn pages(config: &Config, pages: usize, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
        let shape = (pages, 2, config.kv_heads, PAGE, config.head_dim);
        config.layers.iter().map(|_| Tensor::zeros(shape, dtype, device)).collect()
    }

    /// Texts in pages, with their next tokens at these positions.
    pub(super) fn in_pages(memory: &Memory, position: &Tensor) -> Self {
        Self { layers: memory.tensors.clone(), pages: memory.pages.clone(), position: position.clone() }
    }

    /// The same keys and values, with every sequence's next token at this position.
    ///
    /// # Errors
    /// No memory left.
    pub fn at(&self, position: usize) -> Result<Self> {
        let position = Tensor::full(position as u32, self.position.shape(), self.position.device())?;
        Ok(Self { layers: self.layers.clone(), pages: self.pages.clone(), position })
    }

    /// Places that there are for texts of up to `context` tokens.
    pub(super) fn places(context: usize) -> usize {
        context.next_multiple_of(PAGE) + CHUNK
    }

    /// Bytes of such a cache.
    pub fn bytes(config: &Config, batch: usize, context: usize, dtype: DType) -> u64 {
        (batch * Self::places(context)) as u64 * Self::place_bytes(config, dtype)
    }

    /// Bytes of the keys and values of all layers in a place.
    pub(super) fn place_bytes(config: &Config, dtype: DType) -> u64 {
        (2 * config.kv_heads * config.head_dim * dtype.size_in_bytes() * config.layers.len()) as u64
    }
}
