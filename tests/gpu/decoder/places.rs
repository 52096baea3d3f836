//! Attention over a cache reads a text's own places only, whatever is in others, and writes no place beyond the end.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, CachedAttention, NewTokens, PAGE};

use crate::common::{gpu, same_bits, waves, CPU};

pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Heads, heads of keys, and elements of a head: of kernels for tensor cores and others, of clusters and single blocks, and of no kernel.
pub(super) const HEADS: [(usize, usize, usize); 11] = [
    (4, 2, 32),
    (4, 2, 48),
    (8, 2, 64),
    (4, 4, 64),
    (4, 2, 80),
    (4, 4, 96),
    (8, 2, 128),
    (2, 2, 160),
    (4, 1, 256),
    (8, 1, 256),
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
        self.attend_in(cache, None, starts)
    }

    /// The same in pages, if there is a table.
    fn attend_in(&self, cache: &Tensor, pages: Option<&Tensor>, starts: &[u32]) -> Result<Tensor> {
        let start = Tensor::new(starts, cache.device())?;
        let by_distance = self.by_distance.as_ref();
        let new = NewTokens {
            qkv: &self.qkv,
            start: &start,
            counts: None,
            pages,
            rotary: Some(&self.rotary),
            norms: None,
            by_distance,
        };
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

/// Where scores lie far apart, a token sees the value of one place, however large they are: weights are of differences.
#[test]
fn large_scores_choose_a_place() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut chosen = 0;
    for (heads, dtype) in HEADS.iter().flat_map(|&heads| DTYPES.map(|dtype| (heads, dtype))) {
        for (tokens, factor) in
            [1, 3, 128].into_iter().flat_map(|tokens| [60., 1e3, 2e4].map(|factor| (tokens, factor)))
        {
            let (of_heads, of_keys, dim) = heads;
            // candle's operators have scores in the type of 16 bits, which are too large for it.
            if dtype != DType::F32 && (dim == 20 || dim == 256 && tokens > 1) {
                continue;
            }
            let Case { of, cache, .. } = Case::new(heads, [1, tokens, 320], dtype, &device)?;
            let of_type = |x: Tensor| x.to_dtype(dtype)?.to_dtype(DType::F64);
            let start = 150;
            let q = of_type((waves(3, (tokens, of_keys, of_heads / of_keys, dim))? * factor)?)?;
            let new = |i: usize| waves(i, (tokens, of_keys, dim));
            let (k, v) = (of_type((new(4)? * factor)?)?, of_type(new(8)?)?);
            let qkv = [q.flatten(1, 3)?, k.flatten(1, 2)?, v.flatten(1, 2)?];
            let qkv = Tensor::cat(&qkv, 1)?.unsqueeze(0)?.to_dtype(dtype)?.to_device(&device)?;
            let earlier = |at: usize, factor: f64| of_type((cache.get(0)?.get(at)?.narrow(1, 0, start)? * factor)?);
            let [earlier_k, earlier_v] = [earlier(0, factor)?, earlier(1, 1.)?];
            let all = |earlier: &Tensor, new: &Tensor| Tensor::cat(&[earlier, &new.transpose(0, 1)?], 1);
            let (k, v) = (all(&earlier_k, &k)?, all(&earlier_v, &v)?);
            let room = Tensor::zeros((1, 2, of_keys, 320, dim), dtype, &device)?;
            let both = Tensor::stack(&[earlier_k, earlier_v], 0)?.unsqueeze(0)?.to_dtype(dtype)?.to_device(&device)?;
            room.slice_set(&both.contiguous()?, 3, 0)?;
            let at = Tensor::new(&[start as u32], &device)?;
            let tokens_of = NewTokens {
                qkv: &qkv,
                start: &at,
                counts: None,
                pages: None,
                rotary: None,
                norms: None,
                by_distance: None,
            };
            let got = ops::cached_attention(&of, &room, tokens_of)?.to_device(CPU)?.to_dtype(DType::F64)?;
            let got = got.reshape((tokens, of_keys, of_heads / of_keys, dim))?;
            // The last tokens see most.
            let some = tokens.saturating_sub(2)..tokens;
            for (token, head) in some.flat_map(|token| (0..of_heads).map(move |head| (token, head))) {
                let (key, query) = (head / (of_heads / of_keys), head % (of_heads / of_keys));
                let q = q.get(token)?.get(key)?.get(query)?.unsqueeze(1)?;
                let scores = (k.get(key)?.narrow(0, 0, start + token + 1)?.matmul(&q)? * of.scale)?.flatten_all()?;
                let mut places: Vec<(usize, f64)> = scores.to_vec1::<f64>()?.into_iter().enumerate().collect();
                places.sort_by(|a, b| b.1.total_cmp(&a.1));
                // A sum of f32 may have another largest one where two are close.
                if places[0].1 - places[1].1 < 60. + 1e-5 * places[0].1.abs() {
                    continue;
                }
                chosen += 1;
                let (expected, got) = (v.get(key)?.get(places[0].0)?, got.get(token)?.get(key)?.get(query)?);
                let apart = (expected - got)?.abs()?.max(0)?.to_scalar::<f64>()?;
                assert!(apart < 1e-6, "{apart}: token {token}, head {head} of {of:?}, {factor}, {tokens} in {dtype:?}");
            }
        }
    }
    assert!(chosen > 100, "{chosen} tokens had one place");
    Ok(())
}

/// How a text's places are divided follows from their number, whatever blocks there are for it: alone and beside others, shorter and longer ones.
#[test]
fn a_text_sees_the_same_whatever_is_beside_it() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // At the edges of rounds of 128 places, of 2, 8 and 16 of these, and beyond.
    let starts = [0, 15, 16, 127, 128, 200, 255, 256, 700, 1023, 1024, 1100, 2046, 2047, 2048, 2100, 2300];
    // Texts of two heads of keys have more blocks than a GPU has processors.
    let (batch, capacity) = (70, 2304);
    let starts: Vec<u32> = (0..batch).map(|text| starts[text * 7 % starts.len()]).collect();
    for heads in [(8, 2, 64), (4, 4, 64), (14, 2, 64), (4, 2, 80), (8, 2, 128), (4, 1, 256)] {
        for (dtype, window) in
            [(DType::F32, None), (DType::F16, Some(700)), (DType::BF16, None), (DType::BF16, Some(1500))]
        {
            let caches =
                Case::new(heads, [5, 1, capacity], dtype, &device)?.cache.to_dtype(dtype)?.to_device(&device)?;
            let cache = |from: usize, count: usize| {
                let texts = (from..from + count).map(|text| (text % 5) as u32);
                caches.index_select(&Tensor::from_iter(texts, &device)?, 0)
            };
            let mut of = Case::new(heads, [batch, 1, 1], dtype, &device)?;
            (of.capacity, of.of.window) = (capacity, window);
            of.rotary = waves(7, (capacity, heads.2))?.to_device(&device)?;
            let all = of.attend(&cache(0, batch)?, &starts)?;
            // The same places in pages that lie in another order: 11 goes through all of them.
            let (pages, count) = (capacity / PAGE, batch * capacity / PAGE);
            let physical: Vec<u32> = (0..count).map(|page| (page * 11 % count) as u32).collect();
            let mut logical = vec![0; count];
            physical.iter().enumerate().for_each(|(page, at)| logical[*at as usize] = page as u32);
            let in_pages = cache(0, batch)?.reshape((batch, 2, heads.1, pages, PAGE, heads.2))?;
            let in_pages = in_pages.permute((0, 3, 1, 2, 4, 5))?.reshape((count, 2, heads.1, PAGE, heads.2))?;
            let in_pages = in_pages.index_select(&Tensor::new(logical, &device)?, 0)?;
            let table = Tensor::new(physical, &device)?.reshape((batch, pages))?;
            let got = of.attend_in(&in_pages.copy()?, Some(&table), &starts)?;
            assert!(same_bits(&got, &all)?, "in pages, {:?}, {dtype:?}", of.of);
            for (from, count) in [(3, 1), (16, 1), (0, 2), (9, 4), (40, 5), (1, 8), (20, 9), (30, 33), (3, 67)] {
                let qkv = of.qkv.narrow(0, from, count)?.contiguous()?;
                let few = Case { qkv, rotary: of.rotary.clone(), cache: of.cache.clone(), by_distance: None, ..of };
                let got = few.attend(&cache(from, count)?, &starts[from..from + count])?;
                let expected = all.narrow(0, from, count)?.contiguous()?;
                assert!(same_bits(&got, &expected)?, "{count} texts from {from}, {:?}, {dtype:?}", of.of);
                let table = table.narrow(0, from, count)?.contiguous()?;
                let got = few.attend_in(&in_pages.copy()?, Some(&table), &starts[from..from + count])?;
                assert!(same_bits(&got, &expected)?, "{count} texts in pages from {from}, {:?}, {dtype:?}", of.of);
            }
        }
    }
    Ok(())
}
