//! Operators of decoders on a GPU against the CPU, and decoder steps as graphs. Without a GPU, or without the `cuda` feature,
//! each test says that it skips.

mod floats;
mod generation;
mod one_query;
mod pages;
mod places;
mod quantized;
mod rows;
mod scheduling;
#[path = "../../../models/tests/spoiled/mod.rs"]
mod spoiled;
mod t5;

use crate::common::{furthest, gpu, same_bits, waves, CPU};
use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, Activation, CachedAttention, NewTokens};
use opara_candle::{BuiltIn, Mode, OparaExecutor, StepState};

/// Dtypes with their maximum relative error.
const DTYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

/// Fails unless `got` is near `expected`, relative to the largest expected value.
#[track_caller]
fn assert_near(got: &Tensor, expected: &Tensor, tolerance: f64, of: impl std::fmt::Display) {
    let error = || -> Result<f64> {
        let scale = expected.to_device(CPU)?.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?;
        Ok(furthest(got, expected)? / scale.to_scalar::<f64>()?.max(1e-6))
    };
    assert_eq!(got.dims(), expected.dims(), "shape of {of}");
    let error = error().expect("tensors can be compared");
    assert!(error <= tolerance, "{of}: off by {error:.2e}");
}

/// A tensor rounded to a dtype: in f32 on the host, and on the device.
fn both(x: &Tensor, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let x = x.to_dtype(dtype)?;
    Ok((x.to_dtype(DType::F32)?, x.to_device(device)?))
}

#[test]
fn products_with_few_rows_give_what_norm_product_and_sum_give() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Rows of at most a warp, rows of several chunks, a row length that splits do not divide, and a long row.
    for (columns, inner) in [(7, 64), (96, 896), (1152, 896), (40, 4872), (3000, 264)] {
        for (dtype, tolerance) in DTYPES {
            let scaled = |i, shape, by: f64| both(&(waves(i, shape)? * by)?, dtype, &device);
            let (weight, on_gpu) = scaled(3, (2 * columns, inner), (inner as f64).powf(-0.5))?;
            let (narrow, on_gpu_narrow) = (weight.narrow(0, 0, columns)?, on_gpu.narrow(0, 0, columns)?);
            let ((scale, of_scale), (bias, of_bias)) = (scaled(5, (1, inner), 1.)?, scaled(6, (1, 2 * columns), 1.)?);
            let ([scale, of_scale], [bias, of_bias]) =
                ([scale, of_scale].map(|x| x.flatten_all()), [bias, of_bias].map(|x| x.flatten_all()));
            let (scale, of_scale, bias, of_bias) = (scale?, of_scale?, bias?, of_bias?);
            let mut alone = None;
            for rows in [1, 2, 3, 5, 8, 9, 16, 17] {
                let of = format!("{rows} rows of {inner} by {columns} in {dtype:?}");
                let (x, of_x) = scaled(1, (rows, inner), 2.)?;
                let (residual, of_residual) = scaled(2, (rows, columns), 1.)?;
                let (norm, of_norm) = (Some((&scale, 1e-5)), Some((&of_scale, 1e-5)));
                let expected = ops::norm_linear(&x, norm, &narrow, None, Some(&residual))?;
                let got = ops::norm_linear(&of_x, of_norm, &on_gpu_narrow, None, Some(&of_residual))?;
                assert_near(&got, &expected, tolerance, format!("norm, {of}, sum"));
                let again = ops::norm_linear(&of_x, of_norm, &on_gpu_narrow, None, Some(&of_residual))?;
                assert!(same_bits(&got, &again)?, "{of}: other bits at the second call");
                // One row of 16 bits has a kernel of its own; with more than these, the product is a library's.
                let alike = if dtype == DType::F32 { 1..=8 } else { 2..=16 };
                if alike.contains(&rows) {
                    let first = got.narrow(0, 0, 1)?.contiguous()?;
                    let alone = alone.get_or_insert_with(|| first.clone());
                    assert!(same_bits(&first, alone)?, "{of}: the first row depends on the others");
                }
                let (bias, of_bias) = (Some(&bias), Some(&of_bias));
                let expected = ops::norm_linear(&x, None, &weight, bias, None)?;
                assert_near(
                    &ops::norm_linear(&of_x, None, &on_gpu, of_bias, None)?,
                    &expected,
                    tolerance,
                    format!("{of}, bias"),
                );
                for activation in [Activation::Relu, Activation::Silu, Activation::Gelu, Activation::GeluErf] {
                    let expected = ops::norm_linear_act(&x, norm, &weight, bias, activation)?;
                    let got = ops::norm_linear_act(&of_x, of_norm, &on_gpu, of_bias, activation)?;
                    assert_near(&got, &expected, tolerance, format!("{activation:?} of {of}"));
                    let expected = ops::norm_gated(&x, norm, &weight, bias, activation)?;
                    let got = ops::norm_gated(&of_x, of_norm, &on_gpu, of_bias, activation)?;
                    assert_near(&got, &expected, 2. * tolerance, format!("{activation:?}, {of}"));
                }
            }
        }
    }
    Ok(())
}

/// What a test of attention over a cache varies besides sizes.
#[derive(Debug, Clone, Copy)]
struct Case {
    capacity: usize,
    /// Pairs of elements that turn, if any do.
    pairs: Option<usize>,
    has_norms: bool,
    has_distances: bool,
}

/// Several steps after texts of several lengths. The cache holds other numbers beyond each text, which must not be
/// read.
fn attend(of: CachedAttention, case: Case, dtype: DType, tolerance: f64, device: &Device) -> Result<()> {
    let CachedAttention { heads, kv_heads, head_dim, .. } = of;
    let Case { capacity, pairs, has_norms, has_distances } = case;
    let batch = 3;
    let (cache, of_cache) = both(&waves(0, (batch, 2, kv_heads, capacity, head_dim))?, dtype, device)?;
    let angles = pairs.map(|pairs| waves(7, (capacity, 2 * pairs))).transpose()?;
    let table = angles.as_ref().map(|angles| angles.to_device(device)).transpose()?;
    let bias = has_distances.then(|| waves(6, (heads, capacity + 3))).transpose()?;
    let of_bias = bias.as_ref().map(|bias| bias.to_device(device)).transpose()?;
    let (q, of_q) = both(&waves(8, head_dim)?, dtype, device)?;
    let (k, of_k) = both(&waves(9, head_dim)?, dtype, device)?;
    let last = capacity as u32;
    let mut parts = vec![([0u32, 1, 5], vec![1usize, 1, 2]), ([last - 30, 64, last - 3], vec![1, 1, 2])];
    if capacity >= 300 {
        // Parts of prompts, whose tokens see places of each other, and tiles of places that all of them see.
        parts.extend([([0, 3, 70], vec![128, 17]), ([last - 145, 1, last - 300], vec![64, 65, 128])]);
    }
    for (starts, steps) in parts {
        for (step, tokens) in steps.into_iter().enumerate() {
            let start = Tensor::new(&starts, CPU)?;
            let at = format!("{of:?}, {case:?} at {starts:?}, step {step} of {tokens}, {dtype:?}");
            let shape = (batch, tokens, (heads + 2 * kv_heads) * head_dim);
            // Of several tokens not all are a sequence's own: what the others are must not matter.
            let counts = [tokens, tokens / 2, tokens * 3 / 4].map(|count| count as u32);
            let counts = (tokens > 1).then(|| Tensor::new(&counts, CPU)).transpose()?;
            let values = (waves(20 + step, shape)? * 2.)?;
            let values = match &counts {
                Some(counts) => {
                    let places = Tensor::arange(0, tokens as u32, CPU)?.reshape((1, tokens, 1))?;
                    let is_own = places.broadcast_lt(&counts.reshape((batch, 1, 1))?)?.broadcast_as(shape)?;
                    is_own.where_cond(&values, &(values.zeros_like()? + f64::NAN)?)?
                }
                None => values,
            };
            let (qkv, of_qkv) = both(&values, dtype, device)?;
            let norms = has_norms.then_some((&q, &k));
            let new = NewTokens {
                qkv: &qkv,
                start: &start,
                counts: counts.as_ref(),
                pages: None,
                rotary: angles.as_ref(),
                norms,
                by_distance: bias.as_ref(),
            };
            let expected = ops::cached_attention(&of, &cache, new)?;
            assert!(expected.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?.is_finite(), "{at}");
            let start = start.to_device(device)?;
            let counts = counts.map(|counts| counts.to_device(device)).transpose()?;
            let norms = has_norms.then_some((&of_q, &of_k));
            let (rotary, by_distance) = (table.as_ref(), of_bias.as_ref());
            let counts = counts.as_ref();
            let new = NewTokens { qkv: &of_qkv, start: &start, counts, pages: None, rotary, norms, by_distance };
            let got = ops::cached_attention(&of, &of_cache, new)?;
            // Scores of many places differ by more, and exponentials of such differences round by more.
            assert_near(&got, &expected, if capacity > 2000 { tolerance.max(3e-5) } else { tolerance }, &at);
            assert_near(&of_cache, &cache, tolerance, format!("the cache, {at}"));
        }
    }
    Ok(())
}

#[test]
fn attention_over_a_cache_is_that_of_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Clusters, then blocks that have a head for themselves, and no kernel at last.
    for (heads, kv_heads, head_dim, pairs, capacity) in [
        (14, 2, 64, 32, 160),
        (4, 4, 96, 48, 160),
        (8, 2, 128, 48, 160),
        (4, 1, 256, 128, 160),
        (8, 1, 256, 128, 160),
        (6, 2, 16, 8, 160),
        (16, 2, 128, 64, 160),
        (3, 3, 64, 32, 300),
        (8, 8, 64, 32, 160),
        (4, 4, 128, 64, 100),
        (4, 4, 8, 0, 68),
        (4, 2, 20, 10, 160),
        // More places than the warps of a cluster take at a time.
        (8, 2, 64, 32, 1200),
        (6, 2, 96, 48, 2300),
        (8, 2, 128, 64, 2300),
        // More heads that share keys than the kernel of one token has, and heads that only attention of several tokens has.
        (16, 1, 64, 32, 400),
        (4, 2, 40, 16, 300),
        (2, 1, 160, 80, 1100),
    ] {
        for (dtype, tolerance) in DTYPES {
            let scale = (head_dim as f64).powf(-0.5);
            let of = CachedAttention { heads, kv_heads, head_dim, scale, window: None, eps: 1e-5 };
            let (turning, windowed) =
                (Some(pairs).filter(|&pairs| pairs > 0), |window| CachedAttention { window, ..of });
            let case = Case { capacity, pairs: turning, has_norms: false, has_distances: false };
            attend(of, case, dtype, tolerance, &device)?;
            let normed = Case { has_norms: true, ..case };
            attend(windowed(Some(48)), normed, dtype, 2. * tolerance, &device)?;
            attend(windowed(Some(4)), case, dtype, tolerance, &device)?;
            let by_distance = Case { pairs: None, has_distances: true, ..case };
            attend(of, by_distance, dtype, tolerance, &device)?;
            let all = Case { has_distances: true, ..normed };
            attend(windowed(Some(20)), all, dtype, 2. * tolerance, &device)?;
        }
    }
    Ok(())
}

#[test]
fn a_position_beyond_the_cache_writes_nothing_outside_of_it() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let of = CachedAttention { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: None, eps: 1e-5 };
    let whole = Tensor::ones((3, 2, 2, 16, 64), DType::F16, &device)?;
    let cache = whole.narrow(0, 1, 1)?;
    let rotary = Tensor::zeros((16, 64), DType::F32, &device)?;
    for tokens in [1, 3] {
        let qkv = Tensor::zeros((1, tokens, 8 * 64), DType::F16, &device)?;
        for start in [15u32, 16, 1 << 20, u32::MAX] {
            let start = Tensor::new(&[start], &device)?;
            let new = NewTokens {
                qkv: &qkv,
                start: &start,
                counts: None,
                pages: None,
                rotary: Some(&rotary),
                norms: None,
                by_distance: None,
            };
            ops::cached_attention(&of, &cache, new)?;
        }
    }
    for neighbour in [0, 2] {
        let sum = whole.get(neighbour)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        assert_eq!(sum as usize, 2 * 2 * 16 * 64, "sequence {neighbour}");
    }
    Ok(())
}

/// Replays twenty steps in one stream, where each launch has one before it that it need not wait for, and compares results and the
/// tensors `kept` of the state with eager steps.
fn assert_steps_have_eager_bits<F>(
    step: F,
    x: &[Tensor],
    start: &Vec<Tensor>,
    kept: &[usize],
    of: &str,
) -> anyhow::Result<()>
where
    F: Fn(&[Tensor], &Vec<Tensor>) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
{
    let builder = OparaExecutor::builder().scheduler(BuiltIn::Sequential);
    let fast = builder.build_step(step.clone(), x, start)?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    let (mut ours, eager) = (start.fork()?, start.fork()?);
    for at in 0..20 {
        let expected = step(x, &eager)?;
        let got = fast.step(x, &mut ours)?;
        assert!(same_bits(&got[0], &expected[0])?, "{of}: step {at}");
        for &tensor in kept {
            assert!(same_bits(&ours[tensor], &eager[tensor])?, "{of}: tensor {tensor} behind step {at}");
        }
    }
    Ok(())
}

/// Attention loads its position and the places before it while the launch before it may still run: not where a launch before it
/// writes them.
#[test]
fn a_position_that_a_step_writes_first_is_read_when_it_is_written() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let of = CachedAttention { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: None, eps: 1e-5 };
    let table = waves(7, (64, 64))?.to_device(&device)?;
    let weight = (waves(3, (8 * 64, 256))? * 0.06)?.to_dtype(DType::F16)?.to_device(&device)?;
    for tokens in [1, 3] {
        let x = [waves(1, (1, tokens, 256))?.to_dtype(DType::F16)?.to_device(&device)?];
        let (weight, table) = (weight.clone(), table.clone());
        let step = move |x: &[Tensor], state: &Vec<Tensor>| {
            let (position, cache) = (&state[0], &state[1]);
            ops::advance(position, 1)?;
            let qkv = ops::norm_linear(&x[0], None, &weight, None, None)?;
            let new = NewTokens {
                qkv: &qkv,
                start: position,
                counts: None,
                pages: None,
                rotary: Some(&table),
                norms: None,
                by_distance: None,
            };
            Ok(vec![ops::cached_attention(&of, cache, new)?])
        };
        let cache = waves(5, (1, 2, 2, 64, 64))?.to_dtype(DType::F16)?.to_device(&device)?;
        let start = vec![Tensor::new(&[3u32], &device)?, cache];
        assert_steps_have_eager_bits(step, &x, &start, &[1], &format!("{tokens} tokens"))?;
    }
    Ok(())
}
