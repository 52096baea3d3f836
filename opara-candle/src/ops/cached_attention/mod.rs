//! Attention over a cache of keys and values whose length is on the device.

mod composed;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod operands;
mod pages;

use candle::{bail, DType, Result, Tensor};

pub use self::operands::{CachedAttention, NewTokens, PAGE};
use super::own_or;
use crate::gradient;

/// Writes the keys and values of new tokens into a cache, in place, and gives what the tokens see of it: causal attention with
/// grouped heads (Ainslie et al., "GQA", 2023), `(batch, tokens, heads * head_dim)`.
///
/// Queries and keys are normalised and turned by their positions, if there are norms and a table for that. `cache` is `(batch, 2,
/// kv_heads, capacity, head_dim)`, keys before values; `start + tokens` places of it are used. With a [table](NewTokens::pages) it is
/// `(pages, 2, kv_heads, PAGE, head_dim)`, and sequences have the pages that the table gives them (Kwon et al., "PagedAttention", 2023);
/// the bits are the same. No size depends on positions, so one CUDA graph serves all lengths of text, and all tables. On a GPU, one token a sequence, without [counts](NewTokens::counts), is one launch, in which the warps of a block, or the blocks of
/// a cluster, share the cache's places ("Flash-Decoding", Dao et al., 2023). Several tokens are two launches: what becomes of them, and
/// attention on tensor cores, for types of 16 bits and heads of 32, 40, 64, 80, 96, 128 or 160 elements, up to the last place that is
/// seen; otherwise, attention over all places with a mask.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, CachedAttention, NewTokens};
/// let of = CachedAttention { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.35, window: None, eps: 1e-6 };
/// let cache = Tensor::zeros((1, 2, 2, 16, 8), DType::F32, &Cpu)?; // (batch, 2, kv_heads, capacity, head_dim)
/// let qkv = Tensor::zeros((1, 3, 64), DType::F32, &Cpu)?; // three new tokens
/// let (start, rotary) = (Tensor::zeros(1, DType::U32, &Cpu)?, Tensor::zeros((16, 8), DType::F32, &Cpu)?);
/// let new = NewTokens { qkv: &qkv, start: &start, counts: None, pages: None, rotary: Some(&rotary), norms: None, by_distance: None };
/// assert_eq!(ops::cached_attention(&of, &cache, new)?.dims(), [1, 3, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree; on the CPU, tokens beyond the cache's end or the table's. On a GPU the caller sees to it that
/// positions stay below both: what is beyond the end is not written there, and its results are not defined.
pub fn cached_attention(of: &CachedAttention, cache: &Tensor, new: NewTokens) -> Result<Tensor> {
    check(of, cache, &new)?;
    let (scales, tables) = (
        new.norms.map_or([None; 2], |(q, k)| [Some(q), Some(k)]),
        [new.counts, new.pages, new.rotary, new.by_distance],
    );
    let operands: Vec<&Tensor> =
        [new.qkv, cache].into_iter().chain(scales.into_iter().chain(tables).flatten()).collect();
    let own = || gpu!(cuda::cached_attention(of, cache, &new));
    gradient::watched("cached_attention", &operands, || {
        own_or(cache, own, || composed::cached_attention(of, cache, &new))
    })
}

/// Fails where operands do not fit each other.
fn check(of: &CachedAttention, cache: &Tensor, new: &NewTokens) -> Result<()> {
    let CachedAttention { heads, kv_heads, head_dim, .. } = *of;
    let (batch, _, elements) = new.qkv.dims3()?;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || elements != (heads + 2 * kv_heads) * head_dim {
        bail!(
            "{elements} elements are not {heads} heads of queries and {kv_heads} of keys and of values, of {head_dim}"
        )
    }
    let (own, two, h, places, d) = cache.dims5()?;
    let is_alike = (two, h, d) == (2, kv_heads, head_dim) && cache.dtype() == new.qkv.dtype() && cache.is_contiguous();
    if !is_alike || if new.pages.is_some() { places != PAGE } else { own != batch } {
        let (found, dtype) = (cache.dims(), new.qkv.dtype());
        let of = if new.pages.is_some() {
            ["pages".into(), PAGE.to_string()]
        } else {
            [batch.to_string(), "capacity".into()]
        };
        bail!("a cache of {found:?}, not of ({}, 2, {kv_heads}, {}, {head_dim}) in {dtype:?}, contiguous", of[0], of[1])
    }
    if let Some(pages) =
        new.pages.filter(|pages| pages.dims2().map_or(true, |(b, _)| b != batch) || pages.dtype() != DType::U32)
    {
        bail!("a table of pages of {:?} in {:?}, not of ({batch}, pages) in u32", pages.dims(), pages.dtype())
    }
    if let Some(counts) = new.counts.filter(|counts| counts.dims() != [batch] || counts.dtype() != DType::U32) {
        bail!("numbers of own tokens of {:?} in {:?}, not of [{batch}] in u32", counts.dims(), counts.dtype())
    }
    let capacity = new.capacity(cache)?;
    if new.start.dims() != [batch] || new.start.dtype() != DType::U32 {
        bail!("positions of {:?} in {:?}, not of [{batch}] in u32", new.start.dims(), new.start.dtype())
    }
    if let Some(rotary) = new.rotary {
        let (_, turning) = rotary.dims2()?;
        if turning > head_dim || !turning.is_multiple_of(2) || rotary.dtype() != DType::F32 {
            bail!("a rotary table of {:?} in {:?} for heads of {head_dim}", rotary.dims(), rotary.dtype())
        }
    }
    if let Some(table) = new.by_distance {
        let (of, distances) = table.dims2()?;
        if of != heads || distances < capacity || table.dtype() != DType::F32 {
            let (found, dtype) = (table.dims(), table.dtype());
            bail!("a table of distances of {found:?} in {dtype:?}, not of ({heads}, {capacity} or more) in f32")
        }
    }
    match new.norms {
        Some((q, k)) if q.dims() != [head_dim] || k.dims() != [head_dim] => {
            bail!("norms of {:?} and {:?} for heads of {head_dim}", q.dims(), k.dims())
        }
        _ => Ok(()),
    }
}
