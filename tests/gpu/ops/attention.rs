//! Attention: the kernel, and its fallback.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops;

use super::{assert_near, both, DTYPES};
use crate::common::{gpu, same_bits, waves, CPU};

/// Heads of this dimension and dtype with every kind of bias, compared with the CPU.
fn attend(dim: usize, dtype: DType, tolerance: f64, device: &Device) -> Result<()> {
    for (batch, heads, queries, keys) in
        [(2, 3, 128, 128), (1, 2, 5, 5), (2, 2, 70, 130), (1, 4, 1, 200), (3, 1, 17, 64)]
    {
        // Queries, keys and values as slices of one matmul's result.
        let of = |i: usize, tokens: usize| both(&(waves(i, (batch, tokens, 3 * heads, dim))? * 2.)?, dtype, device);
        let ((q, q_gpu), (kv, kv_gpu)) = (of(0, queries)?, of(1, keys)?);
        let view = |x: &Tensor, part: usize| x.transpose(1, 2)?.narrow(1, part * heads, heads);
        let shapes = [vec![1, 1, 1, keys], vec![1, heads, queries, keys], vec![batch, 1, 1, keys], vec![queries, 1]];
        // As large as real masks, which may mask all keys of a query.
        let smallest = if dtype == DType::F16 { -6e4 } else { -3e38 };
        let masked = |bias: Tensor| bias.gt(0.5)?.to_dtype(DType::F32)? * smallest;
        let biases = shapes.iter().map(|shape| both(&masked(waves(2, shape.as_slice())?)?, dtype, device));
        let biases = biases.collect::<Result<Vec<_>>>()?;
        for bias in [None].into_iter().chain(biases.iter().map(Some)) {
            let with = bias.map(|(bias, _)| bias.dims());
            let what = format!("{batch} x {heads} x {queries} x {keys} x {dim} in {dtype:?}, {with:?}");
            let (on_cpu, on_gpu) = (bias.map(|b| &b.0), bias.map(|b| &b.1));
            let expected = ops::attention(&view(&q, 0)?, &view(&kv, 1)?, &view(&kv, 2)?, on_cpu, 0.25)?;
            let [q, k, v] = [view(&q_gpu, 0)?, view(&kv_gpu, 1)?, view(&kv_gpu, 2)?];
            let got = ops::attention(&q, &k, &v, on_gpu, 0.25)?;
            assert_near(&got, &expected, 2. * tolerance, &what);

            let apart = ops::attention(&q.contiguous()?, &k.contiguous()?, &v.contiguous()?, on_gpu, 0.25)?;
            // Rows that are not aligned to 16 bytes.
            let shifted = |x: &Tensor| x.pad_with_zeros(3, 1, 0)?.narrow(3, 1, dim);
            let unaligned = ops::attention(&shifted(&q)?, &shifted(&k)?, &shifted(&v)?, on_gpu, 0.25)?;
            assert!(same_bits(&apart, &got)?, "{what}: bits depend on the head strides");
            assert!(same_bits(&unaligned, &got)?, "{what}: bits depend on the alignment");
        }
    }

    let x = Tensor::zeros((1, 2, 4, dim), dtype, device)?;
    let nothing = Tensor::full(f32::NEG_INFINITY, (4, 4), device)?.to_dtype(dtype)?;
    let got = ops::attention(&x, &x, &x, Some(&nothing), 1.)?.to_dtype(DType::F32)?;
    assert!(got.flatten_all()?.to_vec1::<f32>()?.iter().all(|y| y.is_nan()), "a query with all keys masked");
    Ok(())
}

#[test]
fn attention_agrees_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Those that kernels are compiled for, and others.
    for dim in [32, 40, 64, 80, 96, 128, 160, 8, 24, 48, 72, 112] {
        DTYPES[2..].iter().try_for_each(|&(dtype, tolerance)| attend(dim, dtype, tolerance, &device))?;
    }
    [32, 40, 64, 80, 4, 36, 72].into_iter().try_for_each(|dim| attend(dim, DType::F32, 1e-5, &device))
}

#[test]
fn values_have_heads_of_another_size() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2), (DType::F32, 1e-5)] {
        for (size, of_values) in [(64, 32), (32, 64), (48, 16), (24, 72), (80, 8)] {
            for (queries, keys) in [(70, 130), (1, 40)] {
                let of = |i: usize, tokens: usize, size: usize| both(&waves(i, (2, 3, tokens, size))?, dtype, &device);
                let ((q, q_gpu), (k, k_gpu), (v, v_gpu)) =
                    (of(0, queries, size)?, of(1, keys, size)?, of(2, keys, of_values)?);
                let expected = ops::attention(&q, &k, &v, None, 0.25)?;
                let got = ops::attention(&q_gpu, &k_gpu, &v_gpu, None, 0.25)?;
                assert_eq!(got.dims(), [2, 3, queries, of_values]);
                assert_near(
                    &got,
                    &expected,
                    2. * tolerance,
                    format!("{size} and {of_values}, {queries} queries in {dtype:?}"),
                );
            }
        }
    }
    Ok(())
}

/// Root of the mean square and the largest of the errors that rewriting goes by: multiples of f32's rounding of an element, or of
/// the root mean square if that is larger.
fn errors(got: &Tensor, expected: &Tensor) -> Result<[f64; 2]> {
    let roundings = (expected.abs()?.broadcast_maximum(&expected.sqr()?.mean_all()?.sqrt()?)? * 2f64.powi(-24))?;
    let errors = ((got.to_dtype(DType::F64)? - expected)?.abs()? / roundings)?;
    Ok([errors.sqr()?.mean_all()?.sqrt()?.to_scalar()?, errors.max_all()?.to_scalar()?])
}

#[test]
fn attention_in_f32_is_as_accurate_as_candles_but_where_sums_cancel() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let numbers = opara_weights::seeded(5, DType::F32, CPU);
    for (heads, tokens, dim) in
        [(4, 1024, 64), (4, 257, 64), (12, 128, 64), (4, 50, 64), (4, 300, 32), (3, 130, 40), (3, 577, 80)]
    {
        let of = |name: &str| numbers.get((1, heads, tokens, dim), name)?.to_device(&device);
        let (q, k, v) = (of("q")?, of("k")?, of("v")?);
        // Pairs of equal keys, whose values are a thousand times larger than their sums.
        let pairs = |x: &Tensor, sign: f64| Tensor::stack(&[x, &(x * sign)?], 3)?.reshape((1, heads, (), dim));
        let half = |x: &Tensor| x.narrow(2, 0, tokens / 2);
        let cancelling = (pairs(&(half(&v)? * 1e3)?, -1.)? + pairs(&half(&of("more")?)?, 1.)?)?;
        let cases = [
            ("plain", q.clone(), k.clone(), v.clone()),
            ("of one sign", q.clone(), k.clone(), (&v + 3.)?),
            ("few keys that count", (&q * 4.)?, k.clone(), v.clone()),
            ("large", (&q * 1e15)?, (&k * 1e-15)?, (&v * 1e30)?),
            ("tiny", (&q * 1e-15)?, (&k * 1e15)?, (&v * 1e-28)?),
            ("cancelling", q.clone(), pairs(&half(&k)?, 1.)?, cancelling),
        ];
        let scale = 1. / (dim as f64).sqrt();
        for (what, q, k, v) in cases {
            let [expected, candle] = [DType::F64, DType::F32].map(|dtype| {
                let scores = (q.to_dtype(dtype)?.matmul(&k.to_dtype(dtype)?.t()?)? * scale)?;
                let e = scores.broadcast_sub(&scores.max_keepdim(3)?)?.exp()?;
                let weights = match dtype {
                    DType::F32 => candle_nn::ops::softmax_last_dim(&scores)?,
                    _ => e.broadcast_div(&e.sum_keepdim(3)?)?,
                };
                weights.matmul(&v.to_dtype(dtype)?)
            });
            let (expected, candle) = (expected?, candle?);
            let [[rms, most], [candles_rms, candles_most]] =
                [errors(&ops::attention(&q, &k, &v, None, scale)?, &expected)?, errors(&candle, &expected)?];
            println!(
                "{what}, {heads} x {tokens} x {dim}: {rms:.2} {most:.1}, candle's {candles_rms:.2} {candles_most:.1}"
            );
            // Products keep 22 bits: what cancels to a thousandth shows the two that are missing.
            let [of_rms, of_most] = if what == "cancelling" { [8., 8.] } else { [1.05, 1.5] };
            assert!(
                rms <= of_rms * candles_rms + 0.05 && most <= of_most * candles_most + 1.,
                "{what}, {heads} x {tokens} x {dim}: {rms:.2} roundings, at most {most:.1}; candle's {candles_rms:.2}, {candles_most:.1}"
            );
        }
    }
    Ok(())
}

#[test]
fn nan_in_attention_operands_reaches_the_right_outputs() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, _) in &DTYPES[1..] {
        let ones = Tensor::ones((1, 1, 70, 64), *dtype, &device)?;
        // One query, or one element of a value.
        let query = Tensor::arange(0f32, 70., &device)?.reshape((1, 1, 70, 1))?.eq(5.)?;
        let element = Tensor::arange(0f32, 64., &device)?.reshape((1, 1, 1, 64))?.eq(9.)?;
        let nan = (&ones * f64::NAN)?;
        let with = |x: &Tensor| x.broadcast_as(ones.shape())?.where_cond(&nan, &ones);
        for (q, v, expected) in [(with(&query)?, ones.clone(), &query), (ones.clone(), with(&element)?, &element)] {
            let got = ops::attention(&q, &ones, &v, None, 0.125)?.to_dtype(DType::F32)?;
            let is_nan = got.ne(&got)?;
            let expected = expected.broadcast_as(is_nan.shape())?;
            assert!(same_bits(&is_nan, &expected.contiguous()?)?, "{dtype:?}: {is_nan}");
        }
    }
    Ok(())
}

#[test]
fn attention_with_unsupported_head_dimensions() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    attend(64, DType::F64, 1e-12, &device)?;
    attend(128, DType::F32, 2e-3, &device)?;
    DTYPES.iter().try_for_each(|&(dtype, tolerance)| attend(22, dtype, tolerance, &device))
}

#[test]
fn heads_of_queries_share_keys_and_values() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, dim) in DTYPES.iter().flat_map(|(dtype, _)| [40, 64, 80, 128, 160, 24, 22].map(|dim| (*dtype, dim))) {
        // Slices of one matmul's result: 6 heads of queries, 2 of keys and 2 of values.
        let x = waves(1, (2, 40, 10, dim))?.to_dtype(dtype)?.to_device(&device)?.transpose(1, 2)?;
        let (q, k, v) = (x.narrow(1, 0, 6)?, x.narrow(1, 6, 2)?, x.narrow(1, 8, 2)?);
        let each =
            |x: &Tensor| x.unsqueeze(2)?.broadcast_as((2, 2, 3, 40, dim))?.contiguous()?.reshape((2, 6, 40, dim));
        let apart = ops::attention(&q, &each(&k)?, &each(&v)?, None, 0.25)?;
        assert!(same_bits(&ops::attention(&q, &k, &v, None, 0.25)?, &apart)?, "{dim} in {dtype:?}");
        assert!(ops::attention(&q.narrow(1, 0, 5)?, &k, &v, None, 0.25).is_err(), "5 heads cannot share 2");
    }
    Ok(())
}

#[test]
fn attention_operands_without_a_kernel() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, _) in DTYPES {
        let of = |tokens: usize| Tensor::ones((1, 2, tokens, 64), dtype, &device);
        let (x, k) = (of(4)?, of(6)?);
        assert!(ops::attention(&x, &k, &x, None, 1.).is_err(), "keys and values of different lengths");
        assert!(ops::attention(&x, &k, &k, Some(&k), 1.).is_err(), "a bias of another shape");
        let alike = ops::attention(&x, &k, &k, None, 0.)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(alike.iter().all(|y| (y - 1.).abs() < 0.01), "weights that do not depend on scores");
    }
    Ok(())
}

/// The ranges of the tokens of texts of these lengths that lie side by side.
fn ranges_of(lengths: &[usize]) -> Vec<[u32; 2]> {
    let mut first = 0;
    let mut ranges = Vec::new();
    for &length in lengths {
        ranges.extend(vec![[first, first + length as u32]; length]);
        first += length as u32;
    }
    ranges
}

/// `(1, queries, 2)`.
fn tensor_of(ranges: &[[u32; 2]]) -> Result<Tensor> {
    Tensor::from_vec(ranges.concat(), (1, ranges.len(), 2), CPU)
}

/// As if each query was alone with its keys; a query that sees none has NaN. Nothing that a query does not see reaches it.
#[test]
fn queries_see_their_ranges_alone() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let texts: [&[usize]; 5] =
        [&[1], &[50; 7], &[64, 128, 3, 200, 1, 1, 17], &[300, 7, 129], &[5, 64, 64, 127, 128, 2]];
    let windows: Vec<[u32; 2]> = (0..230u32).map(|at| [at.saturating_sub(at % 70), (at + 40).min(260)]).collect();
    let mut all: Vec<Vec<[u32; 2]>> = texts.iter().map(|lengths| ranges_of(lengths)).collect();
    all.push(windows);
    // From behind to the front, and some that see nothing.
    all.push(
        (0..150u32).map(|at| [(149 - at) / 3 * 3, (149 - at) / 3 * 3 + if at % 5 == 0 { 0 } else { 3 }]).collect(),
    );
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2), (DType::F32, 1e-5)] {
        for dim in [64, 32, 40, 80, 128, 160, 24, 20] {
            for ranges in &all {
                let (queries, keys) = (ranges.len(), ranges.iter().map(|range| range[1]).max().unwrap_or(1) as usize);
                let of =
                    |i: usize, heads: usize, tokens: usize| both(&waves(i, (2, heads, tokens, dim))?, dtype, &device);
                let ((q, q_gpu), (k, k_gpu), (v, v_gpu)) = (of(0, 4, queries)?, of(1, 2, keys)?, of(2, 2, keys)?);
                let ranges = tensor_of(&[&ranges[..], ranges].concat())?.reshape((2, queries, 2))?;
                let expected = ops::ranged_attention(&q, &k, &v, &ranges, 0.25)?;
                let ranges = ranges.to_device(&device)?;
                let got = ops::ranged_attention(&q_gpu, &k_gpu, &v_gpu, &ranges, 0.25)?;
                let (got, expected) = (got.to_device(CPU)?.to_dtype(DType::F64)?, expected);
                let of = format!("{queries} queries, {keys} keys, heads of {dim} in {dtype:?}");
                let numbers = |x: &Tensor| x.flatten_all()?.to_vec1::<f64>();
                for (at, (got, expected)) in numbers(&got)?.into_iter().zip(numbers(&expected)?).enumerate() {
                    assert_eq!(got.is_nan(), expected.is_nan(), "{of}: element {at}");
                    assert!(got.is_nan() || (got - expected).abs() <= 4. * tolerance, "{of}: {got} for {expected}");
                }
            }
        }
    }
    Ok(())
}

/// What overflows in one text does not reach another.
#[test]
fn texts_side_by_side_do_not_poison_each_other() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let lengths = [20, 30, 41, 90, 60];
    let ranges = tensor_of(&ranges_of(&lengths))?.to_device(&device)?;
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let of = |i: usize| waves(i, (1, 2, 241, 64))?.to_dtype(dtype)?.to_device(&device);
        let (q, k, v) = (of(0)?, of(1)?, of(2)?);
        let clean = ops::ranged_attention(&q, &k, &v, &ranges, 0.125)?;
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let spoiled = |x: &Tensor| {
                let bad = x.narrow(2, 50, 41)?.affine(0., bad)?;
                Tensor::cat(&[&x.narrow(2, 0, 50)?, &bad, &x.narrow(2, 91, 150)?], 2)
            };
            let got = ops::ranged_attention(&spoiled(&q)?, &spoiled(&k)?, &spoiled(&v)?, &ranges, 0.125)?;
            for (first, count) in [(0, 50), (91, 150)] {
                let [got, clean] = [&got, &clean].map(|x| x.narrow(2, first, count)?.contiguous());
                let furthest = crate::common::furthest(&got?, &clean?.to_dtype(DType::F64)?.to_device(CPU)?)?;
                assert!(furthest < 4e-3, "{bad} in {dtype:?}: off by {furthest}");
            }
        }
    }
    Ok(())
}

#[test]
fn means_of_ranges_agree_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let ranges = [[0u32, 50], [50, 51], [51, 51], [60, 20], [3, 700], [699, 900]];
    for (dtype, tolerance) in [(DType::F16, 1e-6), (DType::BF16, 1e-6), (DType::F32, 1e-6)] {
        for columns in [768, 8, 1024, 12, 33] {
            let (x, x_gpu) = both(&waves(3, (700, columns))?, dtype, &device)?;
            let expected = ops::range_means(&x, &Tensor::new(&ranges, CPU)?)?.to_dtype(DType::F64)?;
            let got = ops::range_means(&x_gpu, &Tensor::new(&ranges, &device)?)?;
            assert_near(&got, &expected, 4. * tolerance, format!("{columns} columns in {dtype:?}"));
            // Ranges that begin anywhere in memory.
            let narrowed = Tensor::new(&[[0u32, 0], ranges[0], ranges[4]], &device)?.narrow(0, 1, 2)?;
            let again = ops::range_means(&x_gpu, &narrowed)?;
            assert!(same_bits(&again.narrow(0, 0, 1)?.contiguous()?, &got.narrow(0, 0, 1)?.contiguous()?)?);
        }
    }
    Ok(())
}
