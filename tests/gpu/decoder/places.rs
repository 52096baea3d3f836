//! Attention over a cache reads a text's own places only, whatever is in others, and writes no place beyond the end.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, CachedAttention, NewTokens};

use crate::common::{gpu, same_bits, waves, CPU};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Heads, heads of keys, and elements of a head: of kernels for tensor cores and others, of clusters and single blocks, and of no kernel.
const HEADS: [(usize, usize, usize); 10] = [
    (4, 2, 32),
    (4, 2, 48),
    (8, 2, 64),
    (4, 4, 64),
    (4, 2, 80),
    (4, 4, 96),
    (8, 2, 128),
    (2, 2, 160),
    (4, 1, 256),
    (4, 2, 20),
];

const STARTS: [u32; 3] = [0, 70, 150];

/// A case: its sizes, its operands on the device but for the cache, and the cache in f32 on the host.
struct Case {
    of: CachedAttention,
    capacity: usize,
    qkv: Tensor,
    rotary: Tensor,
    by_distance: Option<Tensor>,
    cache: Tensor,
}

impl Case {
    fn new(
        (heads, kv_heads, head_dim): (usize, usize, usize),
        [batch, tokens, capacity]: [usize; 3],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let scale = (head_dim as f64).powf(-0.5);
        let qkv = waves(3, (batch, tokens, (heads + 2 * kv_heads) * head_dim))?;
        Ok(Self {
            of: CachedAttention { heads, kv_heads, head_dim, scale, window: None, eps: 1e-5 },
            capacity,
            qkv: qkv.to_dtype(dtype)?.to_device(device)?,
            rotary: waves(7, (capacity, head_dim))?.to_device(device)?,
            by_distance: None,
            cache: waves(5, (batch, 2, kv_heads, capacity, head_dim))?,
        })
    }

    /// What the new tokens see of a cache, which takes them.
    fn attend(&self, cache: &Tensor, starts: &[u32]) -> Result<Tensor> {
        let start = Tensor::new(starts, cache.device())?;
        let by_distance = self.by_distance.as_ref();
        let new = NewTokens { qkv: &self.qkv, start: &start, rotary: Some(&self.rotary), norms: None, by_distance };
        ops::cached_attention(&self.of, cache, new)
    }

    /// The cache with a number at all places that no new token of the text sees.
    fn with_others(&self, number: f32, starts: &[u32]) -> Result<Tensor> {
        let (tokens, window) = (self.qkv.dim(1)?, self.of.window.unwrap_or(self.capacity));
        let own = starts.iter().flat_map(|&start| {
            let start = start as usize;
            let oldest = (start + 1).saturating_sub(window);
            (0..self.capacity).map(move |place| u8::from((oldest..start + tokens).contains(&place)))
        });
        let own = Tensor::from_iter(own, CPU)?.reshape((starts.len(), 1, 1, self.capacity, 1))?;
        let own = own.broadcast_as(self.cache.shape())?.contiguous()?;
        let cache = own.where_cond(&self.cache, &Tensor::full(number, self.cache.shape(), CPU)?)?;
        cache.to_dtype(self.qkv.dtype())?.to_device(self.qkv.device())
    }
}

#[test]
fn what_other_texts_have_left_in_a_cache_is_not_read() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (heads, dtype) in HEADS.iter().flat_map(|&heads| DTYPES.map(|dtype| (heads, dtype))) {
        for (tokens, capacity) in [(1, 320), (3, 320), (128, 320), (1, 2500), (128, 2500)] {
            let mut case = Case::new(heads, [3, tokens, capacity], dtype, &device)?;
            let table = waves(6, (heads.0, capacity))?.to_device(&device)?;
            for (window, has_distances) in [(None, false), (Some(20), false), (None, true), (Some(2), true)] {
                (case.of.window, case.by_distance) = (window, has_distances.then(|| table.clone()));
                let expected = case.attend(&case.with_others(0., &STARTS)?, &STARTS)?;
                let largest = expected.to_dtype(DType::F32)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(largest > 0. && largest.is_finite(), "{largest}");
                for left in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let got = case.attend(&case.with_others(left, &STARTS)?, &STARTS)?;
                    let of = format!("{:?}, {dtype:?}, distances: {has_distances}", case.of);
                    assert!(same_bits(&got, &expected)?, "{left} is read: {tokens} tokens, {capacity} places, {of}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_token_beyond_the_end_of_a_cache_is_not_written() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (heads, dtype) in HEADS.iter().flat_map(|&heads| DTYPES.map(|dtype| (heads, dtype))) {
        for (tokens, capacity) in [(1, 64), (3, 64), (1, 320), (3, 320)] {
            let case = Case::new(heads, [2, tokens, capacity], dtype, &device)?;
            let before = case.cache.to_dtype(dtype)?;
            let end = capacity as u32;
            for start in [end - 1, end, end + 1, 1 << 20, u32::MAX] {
                let cache = before.to_device(&device)?;
                case.attend(&cache, &[5, start])?;
                let (after, of) = (cache.to_device(CPU)?, format!("{:?} at {start}, {dtype:?}", case.of));
                for place in 0..capacity {
                    let at = |of: &Tensor, item: usize| of.get(item)?.narrow(2, place, 1)?.contiguous();
                    for (item, start) in [(0, 5u32), (1, start)] {
                        let is_new = place as u32 >= start && (place as u32) < start.saturating_add(tokens as u32);
                        let is_kept = same_bits(&at(&after, item)?, &at(&before, item)?)?;
                        assert_eq!(is_kept, !is_new, "place {place} of {capacity} of text {item}, {of}");
                    }
                }
            }
        }
    }
    Ok(())
}
