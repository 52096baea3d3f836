//! Attention over a cache by other operators: new tokens are turned by their positions, written, and attend.

use candle::{DType, Result, Tensor, D};

use super::operands::{CachedAttention, NewTokens, PAGE};
use super::pages;
use crate::cpu::record::{apply, apply_in_place};
use crate::ops::{attention, narrow, permute, reshape, rms_norm, softmax_last_dim, write_rows};

pub(super) fn cached_attention(of: &CachedAttention, cache: &Tensor, new: &NewTokens) -> Result<Tensor> {
    let of = *of;
    let (batch, tokens, _) = new.qkv.dims3()?;
    let CachedAttention { heads, kv_heads, head_dim, .. } = of;
    let qkv = &new.counts.map_or_else(|| Ok(new.qkv.clone()), |counts| without_others(new.qkv, counts))?;
    let (has_norms, turns) = (new.norms.is_some(), new.rotary.is_some());
    let all = match has_norms || turns {
        true => {
            let norms = new.norms.map_or_else(Vec::new, |(q, k)| vec![q, k]);
            let operands = [vec![qkv, new.start], norms, new.rotary.into_iter().collect()].concat();
            apply("rotary", &operands, 0, move |t| {
                let norms = has_norms.then(|| (t[2], t[3]));
                turned(&of, t[0], t[1], if turns { t.last().copied() } else { None }, norms)
            })?
        }
        false => reshape(qkv, (batch, tokens, heads + 2 * kv_heads, head_dim))?,
    };
    let written = reshape(&narrow(&all, 2, heads, 2 * kv_heads)?, (batch, tokens, 2, kv_heads, head_dim))?;
    let written = permute(&written, &[0, 2, 3, 1, 4])?;
    match new.pages {
        None => write_rows(cache, &written, &reshape(new.start, (batch, 1, 1))?)?,
        Some(table) => {
            apply_in_place("write_pages", &[cache, &written, new.start, table], |t| {
                pages::write(t[0], t[1], t[2], t[3])
            })?;
        }
    }
    let flops = 4 * (all.elem_count() * new.capacity(cache)?) as u64;
    let (has_pages, has_distances) = (new.pages.is_some(), new.by_distance.is_some());
    let operands = [Some(&all), Some(cache), Some(new.start), new.pages, new.by_distance];
    apply("attend", &operands.into_iter().flatten().collect::<Vec<_>>(), flops, move |t| {
        // Keys and values came through the cache, without a gradient: that of the queries alone would be wrong.
        let t: Vec<Tensor> = t.iter().map(|t| t.detach()).collect();
        let t: Vec<&Tensor> = t.iter().collect();
        let (pages, by_distance) = (has_pages.then(|| t[3]), has_distances.then(|| t[t.len() - 1]));
        let new = NewTokens { qkv: t[0], start: t[2], counts: None, pages, rotary: None, norms: None, by_distance };
        match t[1].device().is_cpu() {
            true => by_position(&of, t[0], t[1], &new),
            false => by_mask(&of, t[0], t[1], &new),
        }
    })
}

/// Zeros for tokens that are not a sequence's own: they could be infinite, and attention multiplies them by weights of zero.
fn without_others(qkv: &Tensor, counts: &Tensor) -> Result<Tensor> {
    apply("own_tokens", &[qkv, counts], 0, |t| {
        let tokens = Tensor::arange(0, t[0].dim(1)? as u32, t[0].device())?.reshape((1, (), 1))?;
        let is_own = tokens.broadcast_lt(&t[1].reshape(((), 1, 1))?)?;
        let zeros = Tensor::zeros((), t[0].dtype(), t[0].device())?;
        is_own.broadcast_as(t[0].shape())?.where_cond(t[0], &zeros.broadcast_as(t[0].shape())?)
    })
}

/// Where the new tokens of each sequence stand: `(batch, tokens)`.
fn positions(start: &Tensor, tokens: usize) -> Result<Tensor> {
    start.unsqueeze(1)?.broadcast_add(&Tensor::arange(0u32, tokens as u32, start.device())?)
}

/// The rows of a table at the positions of new tokens. Beyond its end a GPU takes the last row: the lookup would be an assertion failure
/// there, after which the process has no GPU.
fn rows_of(rotary: &Tensor, start: &Tensor, tokens: usize) -> Result<Tensor> {
    let positions = positions(start, tokens)?.flatten_all()?;
    let last = rotary.dim(0)?.saturating_sub(1) as u32;
    let positions = if start.device().is_cpu() { positions } else { positions.minimum(last)? };
    rotary.contiguous()?.index_select(&positions, 0)
}

/// Heads of queries, keys and values, `(batch, tokens, heads + 2 * kv_heads, head_dim)`, with the first two normalised and turned.
fn turned(
    of: &CachedAttention,
    qkv: &Tensor,
    start: &Tensor,
    rotary: Option<&Tensor>,
    norms: Option<(&Tensor, &Tensor)>,
) -> Result<Tensor> {
    let (batch, tokens, _) = qkv.dims3()?;
    let CachedAttention { heads, kv_heads, head_dim, .. } = *of;
    let all = qkv.reshape((batch, tokens, heads + 2 * kv_heads, head_dim))?;
    let normed = |first: usize, count: usize, scale: Option<&Tensor>| {
        let part = all.narrow(2, first, count)?;
        scale.map_or_else(|| Ok(part.clone()), |scale| rms_norm(&part.contiguous()?, scale, of.eps))
    };
    let (q, k) = (normed(0, heads, norms.map(|n| n.0))?, normed(heads, kv_heads, norms.map(|n| n.1))?);
    let both = Tensor::cat(&[q, k], 2)?;
    let turned = match rotary {
        Some(rotary) => rotated(&both, &rows_of(rotary, start, tokens)?)?,
        None => both,
    };
    Tensor::cat(&[turned, all.narrow(2, heads + kv_heads, kv_heads)?], 2)
}

/// Heads `(batch, tokens, heads, head_dim)` by cosines and sines `(batch * tokens, 2 * pairs)`, in f32, as those are.
fn rotated(x: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let ((batch, tokens, _, head_dim), pairs) = (x.dims4()?, rows.dim(1)? / 2);
    let rows = rows.reshape((batch, tokens, 1, 2 * pairs))?;
    let (cos, sin) = (rows.narrow(D::Minus1, 0, pairs)?, rows.narrow(D::Minus1, pairs, pairs)?);
    let wide = x.to_dtype(DType::F32)?;
    let (a, b) = (wide.narrow(D::Minus1, 0, pairs)?, wide.narrow(D::Minus1, pairs, pairs)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let mut parts = vec![first, second];
    if head_dim > 2 * pairs {
        parts.push(wide.narrow(D::Minus1, 2 * pairs, head_dim - 2 * pairs)?);
    }
    Tensor::cat(&parts, D::Minus1)?.to_dtype(x.dtype())
}

/// The CPU looks at positions: each sequence by itself, over the places that its tokens see.
fn by_position(of: &CachedAttention, turned: &Tensor, cache: &Tensor, new: &NewTokens) -> Result<Tensor> {
    let CachedAttention { heads, kv_heads, head_dim, .. } = *of;
    let tokens = turned.dim(1)?;
    let mut results = Vec::new();
    for (item, start) in new.start.to_vec1::<u32>()?.into_iter().enumerate() {
        let (start, end) = (start as usize, start as usize + tokens);
        let first = of.window.map_or(0, |window| (start + 1).saturating_sub(window));
        let seen = match new.pages {
            None => cache.get(item)?.narrow(2, first, end - first)?,
            Some(pages) => {
                let (page, after) = (first / PAGE, end.div_ceil(PAGE));
                let own = pages::in_a_row(cache, &pages.narrow(0, item, 1)?.narrow(1, page, after - page)?)?;
                own.get(0)?.narrow(2, first % PAGE, end - first)?
            }
        };
        let (k, v) = (seen.get(0)?.contiguous()?, seen.get(1)?.contiguous()?);
        // Heads that share keys follow one another, as rows of one product.
        let q = turned.get(item)?.narrow(1, 0, heads)?.affine(of.scale, 0.)?.transpose(0, 1)?;
        let q = q.reshape((kv_heads, heads / kv_heads * tokens, head_dim))?;
        let mut scores = q.contiguous()?.matmul(&k.t()?)?;
        if let Some(table) = new.by_distance {
            let distance = |token: usize| (first..end).map(move |place| (start + token).saturating_sub(place) as u32);
            let distances = Tensor::from_iter((0..tokens).flat_map(distance), cache.device())?;
            let added = table.contiguous()?.index_select(&distances, 1)?.reshape(scores.shape())?;
            scores = (scores + added.to_dtype(turned.dtype())?)?;
        }
        if tokens > 1 {
            let hidden = (0..tokens).flat_map(|token| {
                let at = start + token;
                let oldest = of.window.map_or(0, |window| (at + 1).saturating_sub(window));
                (first..end).map(move |place| if place > at || place < oldest { f32::NEG_INFINITY } else { 0. })
            });
            let mask = Tensor::from_iter(hidden, cache.device())?.to_dtype(scores.dtype())?;
            let by_token = scores.reshape((heads, tokens, end - first))?;
            scores = by_token.broadcast_add(&mask.reshape((tokens, end - first))?)?.reshape(scores.shape())?;
        }
        let y = softmax_last_dim(&scores)?.matmul(&v)?;
        results.push(y.reshape((heads, tokens, head_dim))?.transpose(0, 1)?.reshape((tokens, heads * head_dim))?);
    }
    Tensor::stack(&results, 0)
}

/// All sequences over all places, of which a mask hides those that a token does not see. The first heads of `turned`,
/// `(batch, tokens, heads or more, head_dim)`, are the queries. One token a sequence is computed sequence by sequence: a library chooses
/// its kernels by how many there are, and a sequence's bits must not depend on the others.
pub(super) fn by_mask(of: &CachedAttention, turned: &Tensor, cache: &Tensor, new: &NewTokens) -> Result<Tensor> {
    let CachedAttention { heads, kv_heads, head_dim, .. } = *of;
    let NewTokens { start, by_distance, .. } = *new;
    let cache = &new.pages.map_or_else(|| Ok(cache.clone()), |table| pages::in_a_row(cache, table))?;
    let (batch, tokens, capacity, group) = (turned.dim(0)?, turned.dim(1)?, cache.dim(3)?, heads / kv_heads);
    if tokens == 1 && batch > 1 {
        let one = |item| {
            let [turned, cache, start] = [turned, cache, start].map(|of| of.narrow(0, item, 1));
            by_mask(of, &turned?, &cache?, &NewTokens { start: &start?, pages: None, ..*new })
        };
        return Tensor::cat(&(0..batch).map(one).collect::<Result<Vec<_>>>()?, 0);
    }
    let device = cache.device();
    let places = Tensor::arange(0u32, capacity as u32, device)?.reshape((1, 1, capacity))?;
    let at = positions(start, tokens)?.unsqueeze(2)?;
    let cache = own_places(of, cache, start, &places, tokens)?;
    let mut hidden = at.broadcast_lt(&places)?;
    if let Some(window) = of.window {
        // A sum, since positions are unsigned.
        let leaves = places.broadcast_add(&Tensor::full(window as u32, (1, 1, 1), device)?)?;
        hidden = hidden.maximum(&leaves.broadcast_le(&at)?)?;
    }
    let mask = Tensor::zeros(hidden.shape(), turned.dtype(), device)?;
    let mask = hidden.where_cond(&mask.affine(1., f64::NEG_INFINITY)?, &mask)?;
    let mask = mask.unsqueeze(1)?.broadcast_as((batch, group, tokens, capacity))?;
    let mut mask = mask.reshape((batch, 1, group * tokens, capacity))?;
    if let Some(table) = by_distance {
        // What is hidden has a distance, too.
        let distances = at.broadcast_maximum(&places)?.broadcast_sub(&places)?.minimum(capacity as u32 - 1)?;
        let added = table
            .contiguous()?
            .index_select(&distances.flatten_all()?, 1)?
            .reshape((heads, batch, tokens, capacity))?;
        let added = added.to_dtype(turned.dtype())?.transpose(0, 1)?;
        mask = added.reshape((batch, kv_heads, group * tokens, capacity))?.broadcast_add(&mask)?;
    }

    let (k, v) = (cache.narrow(1, 0, 1)?.squeeze(1)?, cache.narrow(1, 1, 1)?.squeeze(1)?);
    let q = turned.narrow(2, 0, heads)?.transpose(1, 2)?.reshape((batch, kv_heads, group * tokens, head_dim))?;
    let y = attention(&q, &k, &v, Some(&mask), of.scale)?;
    y.reshape((batch, heads, tokens, head_dim))?.transpose(1, 2)?.reshape((batch, tokens, heads * head_dim))
}

/// The cache with zeros at places that no new token sees. They hold what another text has left, or nothing yet: an infinity or NaN there
/// would be NaN in each sum, since a weight of zero does not hide it.
fn own_places(of: &CachedAttention, cache: &Tensor, start: &Tensor, places: &Tensor, tokens: usize) -> Result<Tensor> {
    let (batch, capacity) = (cache.dim(0)?, cache.dim(3)?);
    let count = |n: usize| Tensor::full(n as u32, (1, 1), cache.device());
    let (places, start) = (places.reshape((1, capacity))?, start.reshape((batch, 1))?);
    let mut is_own = places.broadcast_lt(&start.broadcast_add(&count(tokens)?)?)?;
    if let Some(window) = of.window {
        is_own = is_own.minimum(&places.broadcast_add(&count(window)?)?.broadcast_gt(&start)?)?;
    }
    let is_own = is_own.reshape((batch, 1, 1, capacity, 1))?.broadcast_as(cache.shape())?;
    is_own.where_cond(cache, &Tensor::zeros((), cache.dtype(), cache.device())?.broadcast_as(cache.shape())?)
}

#[cfg(test)]
mod tests {
    use candle::Device::Cpu;

    use super::*;

    /// Different numbers.
    fn waves(i: usize, shape: &[usize]) -> Result<Tensor> {
        let elements = shape.iter().product::<usize>();
        (Tensor::arange(0f32, elements as f32, &Cpu)? * (i + 1) as f64)?.sin()?.reshape(shape)
    }

    /// The cache with a number at each place that no new token sees.
    fn poisoned(of: &CachedAttention, cache: &Tensor, start: &Tensor, tokens: usize, poison: f32) -> Result<Tensor> {
        let (size, capacity) = (of.head_dim, cache.dim(3)?);
        let starts = start.to_vec1::<u32>()?;
        let of_item = cache.elem_count() / starts.len();
        let mut values = cache.flatten_all()?.to_vec1::<f32>()?;
        for (at, value) in values.iter_mut().enumerate() {
            let (start, place) = (starts[at / of_item] as usize, at / size % capacity);
            let oldest = of.window.map_or(0, |window| (start + 1).saturating_sub(window));
            if !(oldest..start + tokens).contains(&place) {
                *value = poison;
            }
        }
        Tensor::from_vec(values, cache.shape(), &Cpu)
    }

    fn bits(x: &Tensor) -> Result<Vec<u32>> {
        Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    }

    #[test]
    fn a_mask_hides_what_positions_leave_out() -> Result<()> {
        let of = CachedAttention { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.3, window: None, eps: 1e-6 };
        let cache = waves(1, &[3, 2, 2, 20, 8])?;
        let (start, table) = (Tensor::new(&[0u32, 7, 18], &Cpu)?, waves(2, &[4, 23])?);
        for tokens in [1, 2] {
            let all = waves(3, &[3, tokens, 8, 8])?;
            for window in [None, Some(5)] {
                let of = CachedAttention { window, ..of };
                for by_distance in [None, Some(&table)] {
                    let new = NewTokens {
                        qkv: &all,
                        start: &start,
                        counts: None,
                        pages: None,
                        rotary: None,
                        norms: None,
                        by_distance,
                    };
                    let expected = by_position(&of, &all, &cache, &new)?;
                    let got = by_mask(&of, &all, &cache, &new)?;
                    let difference = (&got - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
                    assert!(difference < 1e-5, "{tokens} tokens, {window:?}: {difference}");
                    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        let of_others = poisoned(&of, &cache, &start, tokens, poison)?;
                        let beside = by_mask(&of, &all, &of_others, &new)?;
                        assert_eq!(bits(&beside)?, bits(&got)?, "{tokens} tokens, {window:?}, {poison}");
                        let beside = by_position(&of, &all, &of_others, &new)?;
                        assert_eq!(bits(&beside)?, bits(&expected)?, "{tokens} tokens, {window:?}, {poison}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn tokens_beyond_the_end_of_a_cache_are_refused_and_write_nothing() -> Result<()> {
        let of = CachedAttention { heads: 2, kv_heads: 1, head_dim: 4, scale: 1., window: None, eps: 1e-6 };
        let before = waves(1, &[2, 2, 1, 6, 4])?;
        for (tokens, start) in [(1, 6), (1, 7), (3, 4), (1, u32::MAX - 1)] {
            let (cache, qkv) = (before.copy()?, waves(2, &[2, tokens, 16])?);
            let start = Tensor::new(&[1, start], &Cpu)?;
            let new = NewTokens {
                qkv: &qkv,
                start: &start,
                counts: None,
                pages: None,
                rotary: None,
                norms: None,
                by_distance: None,
            };
            assert!(super::cached_attention(&of, &cache, &new).is_err(), "{tokens} at {start}");
            assert_eq!(bits(&cache)?, bits(&before)?, "{tokens} at {start}");
        }
        Ok(())
    }

    #[test]
    fn tokens_that_fill_up_count_as_zeros_whatever_they_are() -> Result<()> {
        let of = CachedAttention { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.3, window: None, eps: 1e-6 };
        let (start, scale) = (Tensor::new(&[0u32, 7, 15], &Cpu)?, waves(4, &[8])?);
        let rotary = waves(5, &[20, 8])?;
        for (tokens, counts) in [(1usize, [0u32, 1, 1]), (3, [0, 1, 3]), (4, [4, 5, 2])] {
            let own = counts.iter().flat_map(|&count| (0..tokens as u32).map(move |at| at < count));
            let own =
                Tensor::from_iter(own.map(u8::from), &Cpu)?.reshape((3, tokens, 1))?.broadcast_as((3, tokens, 64))?;
            let beside = |other: f32| {
                let others = Tensor::full(other, (3, tokens, 64), &Cpu)?;
                own.where_cond(&waves(3, &[3, tokens, 64])?, &others)
            };
            let counts = Tensor::new(&counts, &Cpu)?;
            for norms in [None, Some((&scale, &scale))] {
                let attend = |qkv: &Tensor, counts: Option<&Tensor>| -> Result<Vec<u32>> {
                    let cache = waves(1, &[3, 2, 2, 20, 8])?;
                    let rotary = Some(&rotary);
                    let new = NewTokens { qkv, start: &start, counts, pages: None, rotary, norms, by_distance: None };
                    let y = super::cached_attention(&of, &cache, &new)?;
                    assert!(y.sum_all()?.to_scalar::<f32>()?.is_finite());
                    Ok([bits(&y)?, bits(&cache)?].concat())
                };
                let expected = attend(&beside(0.)?, None)?;
                for other in [f32::NAN, f32::INFINITY, 1e30] {
                    let got = attend(&beside(other)?, Some(&counts))?;
                    let differing = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    assert_eq!(differing, 0, "{tokens} tokens beside {other}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_score_gets_the_number_of_its_distance() -> Result<()> {
        let of = CachedAttention { heads: 1, kv_heads: 1, head_dim: 1, scale: 1., window: None, eps: 1e-6 };
        // Queries and keys are zero: what is seen is the mean of the values 0, 1, 2, weighted by the table.
        let cache = Tensor::new(&[0f32, 0., 0., 0., 0., 1., 2., 3.], &Cpu)?.reshape((1, 2, 1, 4, 1))?;
        let all = Tensor::zeros((1, 1, 3, 1), DType::F32, &Cpu)?;
        let table = Tensor::new(&[[0f32, 2f32.ln(), 4f32.ln(), 100.]], &Cpu)?;
        let (start, by_distance) = (Tensor::new(&[2u32], &Cpu)?, Some(&table));
        let new =
            NewTokens { qkv: &all, start: &start, counts: None, pages: None, rotary: None, norms: None, by_distance };
        let y = by_position(&of, &all, &cache, &new)?;
        let y = y.flatten_all()?.to_vec1::<f32>()?[0];
        assert!((y - (4. * 0. + 2. * 1. + 2.) / 7.).abs() < 1e-6, "{y}");
        Ok(())
    }
}
