//! Attention over a cache in one launch, of one new token a sequence, or in two.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::composed::by_mask;
use super::launch::{self, Operands, Sizes};
use super::operands::{CachedAttention, NewTokens};
use crate::cuda::operator::{begin_wide, launched, takes, with_elements, Call, Kernel};
use crate::ops::causal_attention::{self, causal_attention};
use crate::ops::new_tokens::{self, new_tokens, Beside};

/// See [`cached_attention`](super::cached_attention); `None` where other operators have to do it.
pub(super) fn cached_attention(of: &CachedAttention, cache: &Tensor, new: &NewTokens) -> Result<Option<Tensor>> {
    let NewTokens { qkv, start, counts, pages, rotary, norms, by_distance } = *new;
    let ((batch, tokens, _), capacity) = (qkv.dims3()?, new.capacity(cache)?);
    // Without a table nothing turns, and every place is a position.
    let (positions, turning) = rotary.map_or(Ok((capacity, 0)), Tensor::dims2)?;
    let distances = by_distance.map_or(Ok(0), |table| table.dim(1))?;
    let (cached, of_page) = (cache.elem_count(), cache.elem_count() / cache.dim(0)?.max(1));
    let sizes = Sizes {
        of: *of,
        dtype: qkv.dtype(),
        batch,
        capacity,
        cached,
        of_page,
        pairs: turning / 2,
        positions,
        distances,
    };
    let is_one = tokens == 1 && counts.is_none() && sizes.is_known();
    let others = [Some(start), counts, pages, rotary, by_distance];
    let together = others.into_iter().flatten().all(|tensor| tensor.device().same_device(qkv.device()));
    if !(is_one || sizes.of_tokens(tokens).is_known())
        || !together
        || !takes(qkv, &[Some(cache), norms.map(|(q, _)| q), norms.map(|(_, k)| k)])
    {
        return Ok(None);
    }
    let norms = norms.map(|(q, k)| Ok::<_, candle::Error>((q.contiguous()?, k.contiguous()?))).transpose()?;
    let contiguous = |tensor: Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
    let (qkv, start) = (qkv.contiguous()?, start.contiguous()?);
    let (counts, pages) = (contiguous(counts)?, contiguous(pages)?);
    let (rotary, by_distance) = (contiguous(rotary)?, contiguous(by_distance)?);
    let scales = norms.as_ref().map_or([None; 2], |(q, k)| [Some(q), Some(k)]);
    if !begin_wide([Some(&qkv), Some(cache), rotary.as_ref()].into_iter().chain(scales).flatten())? {
        return Ok(None);
    }
    if !is_one {
        let norms = norms.as_ref().map(|(q, k)| (q, k));
        let (counts, pages) = (counts.as_ref(), pages.as_ref());
        let (rotary, by_distance) = (rotary.as_ref(), by_distance.as_ref());
        let new = NewTokens { qkv: &qkv, start: &start, counts, pages, rotary, norms, by_distance };
        return several_tokens(&sizes, tokens, cache, &new).map(Some);
    }
    let kernel = OneToken { sizes, norms, start, pages, rotary, by_distance, cache: cache.clone() };
    launched(kernel, &qkv, (batch, 1, of.heads * of.head_dim)).map(Some)
}

/// The new tokens into the cache, then what their queries see of it: two launches, or more where there is no kernel for the second.
fn several_tokens(sizes: &Sizes, tokens: usize, cache: &Tensor, new: &NewTokens) -> Result<Tensor> {
    let Sizes { of, dtype, batch, capacity, cached, of_page, positions, .. } = *sizes;
    let NewTokens { qkv, start, counts, pages, rotary, norms, .. } = *new;
    let q = new_tokens(sizes.of_tokens(tokens), qkv, &Beside { norms, start, counts, pages, rotary, cache })?;
    let sizes = causal_attention::Sizes {
        dtype,
        batch,
        tokens,
        heads: of.heads,
        kv_heads: of.kv_heads,
        head_dim: of.head_dim,
        capacity,
        cached,
        of_page,
        end: capacity.min(positions),
        window: of.window,
        scale: of.scale as f32,
    };
    let seen = if new.by_distance.is_none() { causal_attention(sizes, &q, cache, start, pages)? } else { None };
    seen.map_or_else(|| by_mask(&of, &q, cache, new), Ok)
}

impl Sizes {
    /// Of so many new tokens a sequence.
    fn of_tokens(&self, tokens: usize) -> new_tokens::Sizes {
        let Self { of, dtype, batch, capacity, cached, of_page, pairs, positions, .. } = *self;
        let CachedAttention { heads, kv_heads, head_dim, eps, .. } = of;
        new_tokens::Sizes {
            dtype,
            batch,
            tokens,
            heads,
            kv_heads,
            head_dim,
            pairs,
            positions,
            capacity,
            cached,
            of_page,
            eps,
        }
    }
}

struct OneToken {
    sizes: Sizes,
    norms: Option<(Tensor, Tensor)>,
    start: Tensor,
    pages: Option<Tensor>,
    rotary: Option<Tensor>,
    by_distance: Option<Tensor>,
    cache: Tensor,
}

impl Kernel for OneToken {
    const NAME: &'static str = "cached_attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let Self { sizes, norms, start, pages, rotary, by_distance, cache } = self;
        let of_heads = [Some(cache), norms.as_ref().map(|(q, _)| q), norms.as_ref().map(|(_, k)| k)];
        with_elements(of_heads, |[cache, q, k]| {
            with_elements::<u32, _, 2>([Some(start), pages.as_ref()], |[start, pages]| {
                with_elements::<f32, _, 2>([rotary.as_ref(), by_distance.as_ref()], |[rotary, by_distance]| {
                    let (Some(cache), Some(start)) = (&cache, &start) else { bail!("there are a cache and positions") };
                    let (pages, rotary, by_distance) = (pages.as_ref(), rotary.as_ref(), by_distance.as_ref());
                    let norms = q.as_ref().zip(k.as_ref());
                    let operands = Operands { norms, start, pages, rotary, by_distance, cache };
                    launch::cached_attention(device, sizes, &x, &operands, y)
                })
            })
        })
    }
}
