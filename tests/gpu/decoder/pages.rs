//! Attention over a cache in pages has the bits of one in a row, and texts that wait on the host go on with theirs.

use std::sync::Arc;

use candle::{DType, Result, Tensor};
use opara_candle::ops::{self, CachedAttention, NewTokens, PAGE};
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{Engine, Options, Request};

use super::generation::configs;
use super::places::{DTYPES, HEADS};
use crate::common::{gpu, same_bits, waves, CPU};

/// Pages of each text, in a cache of `PAGES`, whose others are no text's.
fn table(texts: usize, pages: usize) -> Vec<Vec<u32>> {
    let all = texts * pages + 3;
    // A number without a common divisor goes through all pages.
    let step = [7, 11, 13].into_iter().find(|step| !all.is_multiple_of(*step)).expect("a step");
    (0..texts).map(|text| (0..pages).map(|at| (((text * pages + at) * step + 2) % all) as u32).collect()).collect()
}

/// A cache in a row as pages; the others have a number.
fn in_pages(cache: &Tensor, table: &[Vec<u32>], others: f64) -> Result<Tensor> {
    let (texts, two, kv_heads, places, head_dim) = cache.dims5()?;
    let pages = places / PAGE;
    let all = Tensor::full(others, (texts * pages + 3, two, kv_heads, PAGE, head_dim), CPU)?.to_dtype(cache.dtype())?;
    for (text, own) in table.iter().enumerate() {
        for (at, page) in own.iter().enumerate() {
            let part = cache.narrow(0, text, 1)?.narrow(3, at * PAGE, PAGE)?.force_contiguous()?;
            all.slice_set(&part, 0, *page as usize)?;
        }
    }
    Ok(all)
}

#[test]
fn attention_over_pages_has_the_bits_of_attention_over_rows() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for ((heads, kv_heads, head_dim), dtype) in HEADS.iter().flat_map(|&heads| DTYPES.map(|dtype| (heads, dtype))) {
        for (tokens, pages) in [(1, 1), (1, 5), (3, 5), (128, 5), (1, 40), (128, 40)] {
            // Without a kernel a token of a text is several launches.
            if head_dim == 20 && tokens * pages > 128 {
                continue;
            }
            let places = pages * PAGE;
            let cache = waves(5, (3, 2, kv_heads, places, head_dim))?.to_dtype(dtype)?;
            let own = table(3, pages);
            let (in_row, in_pages) = (cache.to_device(&device)?, in_pages(&cache, &own, f64::NAN)?.to_device(&device)?);
            let nobodys = (0..3 * pages as u32 + 3).filter(|page| own.iter().flatten().all(|own| own != page));
            let nobodys = Tensor::new(nobodys.collect::<Vec<_>>(), &device)?;
            let of_own = Tensor::new(own.concat(), &device)?;
            let qkv = waves(3, (3, tokens, (heads + 2 * kv_heads) * head_dim))?.to_dtype(dtype)?.to_device(&device)?;
            let rotary = waves(7, (places, head_dim))?.to_device(&device)?;
            let distances = waves(6, (heads, places))?.to_device(&device)?;
            let pages_of = Tensor::new(own.clone(), &device)?;
            let end = places as u32;
            let mut starts = vec![[0, end - 1, end / 2], [end - 1, end, 1 << 20], [63, 0, u32::MAX]];
            if tokens > 1 {
                starts = vec![[0, 61, end - tokens as u32], [end - 1, 64, end + 5]];
            }
            for (window, has_distances) in [(None, false), (Some(20), false), (None, true)] {
                for starts in &starts {
                    let of = CachedAttention {
                        heads,
                        kv_heads,
                        head_dim,
                        scale: (head_dim as f64).powf(-0.5),
                        window,
                        eps: 1e-5,
                    };
                    let start = Tensor::new(&starts[..], &device)?;
                    let by_distance = has_distances.then_some(&distances);
                    let rotary = Some(&rotary);
                    let new = NewTokens {
                        qkv: &qkv,
                        start: &start,
                        counts: None,
                        pages: None,
                        rotary,
                        norms: None,
                        by_distance,
                    };
                    let (row, paged) = (in_row.copy()?, in_pages.copy()?);
                    let expected = ops::cached_attention(&of, &row, new)?;
                    let got = ops::cached_attention(&of, &paged, NewTokens { pages: Some(&pages_of), ..new })?;
                    let told = format!("{of:?}, {dtype:?}, {tokens} tokens at {starts:?} of {pages} pages");
                    // What is beyond the end has no result.
                    for (text, start) in starts.iter().enumerate().filter(|(_, start)| **start < end) {
                        let valid = tokens.min((end - start) as usize);
                        let of = |y: &Tensor| y.get(text)?.narrow(0, 0, valid)?.contiguous();
                        assert!(same_bits(&of(&got)?, &of(&expected)?)?, "text {text}: {told}");
                    }
                    let written = paged.index_select(&of_own, 0)?;
                    let written =
                        written.reshape((3, pages, 2, kv_heads, PAGE, head_dim))?.permute((0, 2, 3, 1, 4, 5))?;
                    assert!(same_bits(&written.reshape(row.shape())?, &row)?, "the pages: {told}");
                    let [before, after] = [&in_pages, &paged].map(|of| of.index_select(&nobodys, 0));
                    assert!(same_bits(&before?, &after?)?, "nobody's pages: {told}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn texts_that_wait_on_the_host_write_what_they_write_with_pages_for_all() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (kind, dtype) in [(2, DType::F16), (6, DType::BF16), (0, DType::F32)] {
        let (name, config) = configs().swap_remove(kind);
        let config = Config { max_positions: 512, ..config };
        let model = Arc::new(Decoder::load(opara_weights::seeded(5, dtype, &device), &config, 400)?);
        let engine =
            |pages, builder| Engine::new(model.clone(), Options { slots: 8, pages, builder, ..Options::default() });
        let texts: Vec<Request> = (0..16u32)
            .map(|at| {
                // A prompt of one page or three, and an answer of two more.
                let prompt = (0..1 + at * 37 % 60 + at % 5 / 4 * 130).map(|i| (i * 7 + at % 3) % 90).collect();
                Request { prompt, most: 100 + (at as usize * 29) % 80, ..Request::default() }
            })
            .collect();
        let expected = engine(None, None)?.generate(&texts, |_, _| ())?;
        for builder in [None, Some(OparaExecutor::builder())] {
            let (mut few, mut waited) = (engine(Some(9), builder)?, 0);
            let mut at = 0;
            let (sender, told) = std::sync::mpsc::channel();
            while at < texts.len() || few.live() > 0 {
                while at < texts.len() && few.free() > 0 {
                    few.add(texts[at].clone(), Box::new(super::scheduling::Told(sender.clone(), at)))?;
                    at += 1;
                }
                few.step(|_| false)?;
                waited = waited.max(few.aside());
            }
            let mut got = vec![Vec::new(); texts.len()];
            told.try_iter().for_each(|(at, token): (usize, u32)| got[at].push(token));
            assert_eq!(few.eager(), [""; 0], "{name}");
            assert_eq!(got, expected, "{name} in {dtype:?}");
            assert!(waited > 0 && few.pages() == Some((0, 9)), "{waited} waited, {:?}", few.pages());
        }
    }
    Ok(())
}

/// Parts of as many prompts as wait are read together, and further parts of each, and no text's bits depend on that.
#[test]
fn parts_that_are_read_together_give_the_texts_that_each_gives_alone() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (kind, dtype) in [(2, DType::F16), (6, DType::BF16), (0, DType::BF16)] {
        let (name, config) = configs().swap_remove(kind);
        let config = Config { max_positions: 2_000, hidden: 512, intermediate: 1536, ..config };
        let model = Arc::new(Decoder::load(opara_weights::seeded(5, dtype, &device), &config, 1_500)?);
        let engine = |most_parts, builder| {
            Engine::new(model.clone(), Options { slots: 8, most_parts, builder, ..Options::default() })
        };
        // Of other tenants, so that nothing is shared.
        let text = |(at, length): (usize, usize)| {
            let prompt = (0..length as u32).map(|i| (i * 7 + at as u32) % 90).collect();
            Request { prompt, most: 12, tenant: at as u64, ..Request::default() }
        };
        let short = (0..24).map(|at| 1 + at * 37 % 300);
        let texts: Vec<Request> = short.chain([1_400, 128, 129, 1_024, 700]).enumerate().map(text).collect();
        let expected = engine(1, None)?.generate(&texts, |_, _| ())?;
        let mut together = engine(64, Some(OparaExecutor::builder()))?;
        together.build()?;
        assert_eq!(together.eager(), [""; 0], "{name}");
        // For 1, 2, 4 and so on up to 64 parts, and for steps of 2, 4 and 8 texts with marks and without.
        assert_eq!(together.reports().len(), 7 + 2 * 3, "{name} in {dtype:?} is read alike");
        assert_eq!(together.generate(&texts, |_, _| ())?, expected, "{name} in {dtype:?}");
        // Alone, all of a prompt at once, of which nothing was read before.
        for (text, expected) in texts.iter().zip(&expected).skip(24) {
            let text = Request { tenant: 100 + text.tenant, ..text.clone() };
            assert_eq!(together.generate(&[text], |_, _| ())?, std::slice::from_ref(expected), "{name}");
        }
    }
    Ok(())
}
