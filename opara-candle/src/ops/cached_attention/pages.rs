//! Caches in pages, by other operators.

use candle::{bail, Result, Tensor};

use super::operands::PAGE;

/// The places of each sequence in a row, `(batch, 2, kv_heads, places, head_dim)`, of a cache `(pages, 2, kv_heads, PAGE, head_dim)`.
pub(super) fn in_a_row(cache: &Tensor, pages: &Tensor) -> Result<Tensor> {
    let ((batch, count), (_, two, kv_heads, _, head_dim)) = (pages.dims2()?, cache.dims5()?);
    if cache.device().is_cuda() && cache.elem_count() > u32::MAX as usize {
        bail!(
            "pages of {} elements, and candle's kernels count {} of them: have fewer pages",
            cache.elem_count(),
            u32::MAX
        )
    }
    let own = cache.index_select(&pages.flatten_all()?, 0)?;
    // Dimensions are at most six: keys and values count as heads.
    let own = own.reshape((batch, count, two * kv_heads, PAGE, head_dim))?.transpose(1, 2)?;
    own.reshape((batch, two, kv_heads, count * PAGE, head_dim))
}

/// Writes keys and values, `(batch, 2, kv_heads, tokens, head_dim)`, of tokens from `start` on, `(batch)`, into the pages of each
/// sequence. On the CPU nothing is written where one does not fit; a GPU skips tokens beyond the end.
pub(super) fn write(cache: &Tensor, new: &Tensor, start: &Tensor, pages: &Tensor) -> Result<()> {
    match cache.device().is_cpu() {
        true => write_on_cpu(cache, new, &start.to_vec1()?, &pages.to_vec2()?),
        false => write_by_index(cache, new, start, pages),
    }
}

fn write_on_cpu(cache: &Tensor, new: &Tensor, start: &[u32], pages: &[Vec<u32>]) -> Result<()> {
    let (tokens, all) = (new.dim(3)?, cache.dim(0)?);
    let mut parts = Vec::new();
    for (item, (start, pages)) in start.iter().zip(pages).enumerate() {
        let (start, mut token) = (*start as usize, 0);
        if start + tokens > pages.len() * PAGE {
            bail!("{tokens} tokens at position {start} of a cache of {} pages of {PAGE}", pages.len())
        }
        while token < tokens {
            let (page, place) = (pages[(start + token) / PAGE] as usize, (start + token) % PAGE);
            if page >= all {
                bail!("page {page} of a cache of {all}")
            }
            let count = (PAGE - place).min(tokens - token);
            parts.push((item, token, count, page, place));
            token += count;
        }
    }
    parts.into_iter().try_for_each(|(item, token, count, page, place)| {
        let part = new.narrow(0, item, 1)?.narrow(3, token, count)?;
        cache.narrow(0, page, 1)?.slice_set(&part.force_contiguous()?, 3, place)
    })
}

/// By the number of each row of the cache.
fn write_by_index(cache: &Tensor, new: &Tensor, start: &Tensor, pages: &Tensor) -> Result<()> {
    let (device, (all, two, kv_heads, _, head_dim)) = (cache.device(), cache.dims5()?);
    let ((batch, count), tokens, heads) = (pages.dims2()?, new.dim(3)?, two * kv_heads);
    let number = |number: usize| Tensor::full(number as u32, (1, 1), device);
    let (page, end) = (number(PAGE)?, number(count * PAGE)?);
    let tokens_at = Tensor::arange(0, tokens as u32, device)?.unsqueeze(0)?;
    // A position beyond the end stays so when tokens are added.
    let place = start.unsqueeze(1)?.broadcast_minimum(&end)?.broadcast_add(&tokens_at)?;
    let at_page = place.broadcast_div(&page)?;
    let own = pages.contiguous()?.gather(&at_page.broadcast_minimum(&number(count - 1)?)?, 1)?;
    let in_page = (&place - at_page.broadcast_mul(&page)?)?;
    let head = Tensor::arange(0, heads as u32, device)?.reshape((1, heads, 1))?;
    let first = own.broadcast_mul(&number(heads)?)?.unsqueeze(1)?.broadcast_add(&head)?;
    let row = first.broadcast_mul(&page.unsqueeze(0)?)?.broadcast_add(&in_page.unsqueeze(1)?)?;
    let is_there = place.broadcast_lt(&end)?.unsqueeze(1)?.broadcast_as(row.shape())?;
    // Nothing is written at the largest number.
    let row = is_there.where_cond(&row, &Tensor::full(u32::MAX, row.shape(), device)?)?;
    let rows = batch * heads * tokens;
    let row = row.reshape((rows, 1))?.broadcast_as((rows, head_dim))?.contiguous()?;
    let new = new.contiguous()?.reshape((rows, head_dim))?;
    cache.reshape((all * heads * PAGE, head_dim))?.scatter_set(&row, &new, 0)
}

#[cfg(test)]
mod tests {
    use candle::{DType, Device::Cpu};

    use super::*;

    #[test]
    fn both_ways_write_the_same_places_and_no_others() -> Result<()> {
        let shape = (7, 2, 3, PAGE, 4);
        let waves = |by: f64, shape: &[usize]| {
            (Tensor::arange(0f32, shape.iter().product::<usize>() as f32, &Cpu)? * by)?.sin()?.reshape(shape)
        };
        let pages = Tensor::new(&[[3u32, 5, 1], [6, 2, 4]], &Cpu)?;
        for (tokens, starts) in [(1, [0u32, 191]), (2, [63, 128]), (130, [1, 62]), (192, [0, 0])] {
            let before = waves(0.7, &[7, 2, 3, PAGE, 4])?;
            let (new, start) = (waves(0.3, &[2, 2, 3, tokens, 4])?, Tensor::new(&starts, &Cpu)?);
            let [a, b] = [before.copy()?, before.copy()?];
            write(&a, &new, &start, &pages)?;
            write_by_index(&b, &new, &start, &pages)?;
            assert_eq!(
                a.flatten_all()?.to_vec1::<f32>()?,
                b.flatten_all()?.to_vec1::<f32>()?,
                "{tokens} at {starts:?}"
            );
            let rows = in_a_row(&a, &pages)?;
            for (item, start) in starts.into_iter().enumerate() {
                let own = rows.get(item)?.narrow(2, start as usize, tokens)?;
                assert_eq!((own - new.get(item)?)?.abs()?.max_all()?.to_scalar::<f32>()?, 0., "{tokens} at {starts:?}");
            }
            let changed = (&a - &before)?.ne(0f32)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
            assert!(changed <= (2 * tokens * 2 * 3 * 4) as f32, "{changed} of {shape:?}");
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_writes_nothing() -> Result<()> {
        let (before, new) =
            (Tensor::zeros((3, 2, 1, PAGE, 2), DType::F32, &Cpu)?, Tensor::ones((2, 2, 1, 4, 2), DType::F32, &Cpu)?);
        for (starts, pages) in [([0u32, 61], [1u32, 2]), ([0, u32::MAX], [1, 2]), ([0, 0], [1, 3])] {
            let cache = before.copy()?;
            let pages = Tensor::new(&pages, &Cpu)?.reshape((2, 1))?;
            assert!(write(&cache, &new, &Tensor::new(&starts, &Cpu)?, &pages).is_err(), "{starts:?}");
            assert_eq!(cache.sum_all()?.to_scalar::<f32>()?, 0.);
        }
        Ok(())
    }
}
