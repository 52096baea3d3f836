//! Normalizations, softmax, attention, and the epilogue of a matmul.

use candle::{DType, Result, Tensor};
use opara_candle::ops::{self, Activation, ConvConfig};

use crate::{assert_close, assert_same_bits, doubles, values};

/// Normalizes rows of `columns` columns by the definition.
fn normalised(x: &[f64], columns: usize, centred: bool, eps: f64) -> Vec<f64> {
    let mean_of = |row: &[f64]| row.iter().sum::<f64>() / columns as f64;
    let row = |row: &[f64]| {
        let mean = if centred { mean_of(row) } else { 0. };
        let row: Vec<f64> = row.iter().map(|x| x - mean).collect();
        let variance = mean_of(&row.iter().map(|x| x * x).collect::<Vec<_>>());
        row.into_iter().map(move |x| x / (variance + eps).sqrt())
    };
    x.chunks(columns).flat_map(row).collect()
}

#[test]
fn normalisations_follow_their_definition() -> Result<()> {
    const EPS: f32 = 1e-3;
    let dtype = DType::F32; // candle has no normalisation in f64.
    for columns in [1, 7, 64, 1000] {
        let x = values(1, &[columns, 2, 3], dtype)?.transpose(0, 2)?;
        let residual = values(2, &[3, 2, columns], dtype)?;
        let [bias, scale, shift] = [3, 4, 5].map(|seed| values(seed, &[columns], dtype));
        let (bias, scale, shift) = (bias?, scale?, shift?);
        let [xs, residuals, biases, scales, shifts] = [&x, &residual, &bias, &scale, &shift].map(doubles);
        let (xs, residuals, biases, scales, shifts) = (xs?, residuals?, biases?, scales?, shifts?);
        let expected = |sum: Vec<f64>, centred| -> Vec<f64> {
            let normed = normalised(&sum, columns, centred, EPS.into()).into_iter().enumerate();
            let shift = |i: usize| if centred { shifts[i % columns] } else { 0. };
            normed.map(|(i, x)| x * scales[i % columns] + shift(i)).collect()
        };
        let sum = |bias: f64| {
            let sum = |(i, x): (usize, &f64)| x + bias * biases[i % columns] + residuals[i];
            xs.iter().enumerate().map(sum).collect::<Vec<_>>()
        };
        assert_close(&ops::layer_norm(&x, &scale, &shift, EPS)?, &expected(xs.clone(), true));
        assert_close(&ops::rms_norm(&x, &scale, EPS)?, &expected(xs.clone(), false));
        let add = |bias| ops::add_layer_norm(&x, bias, &residual, &scale, &shift, EPS);
        assert_close(&add(None)?, &expected(sum(0.), true));
        assert_close(&add(Some(&bias))?, &expected(sum(1.), true));
        assert!(ops::add_layer_norm(&x, None, &bias, &scale, &shift, EPS).is_err());
        let (kept, normed) = ops::add_rms_norm(&x, &residual, &scale, EPS)?;
        assert_close(&kept, &sum(0.));
        assert_close(&normed, &expected(sum(0.), false));
    }
    Ok(())
}

#[test]
fn group_norms_follow_their_definition() -> Result<()> {
    const EPS: f32 = 1e-3;
    for (shape, groups) in [(&[2, 6, 5, 7][..], 3), (&[1, 4, 9], 4), (&[3, 8, 2, 2], 1)] {
        let x = values(1, shape, DType::F32)?;
        let channels = shape[1];
        let plane: usize = shape[2..].iter().product();
        let [scale, shift] = [2, 3].map(|seed| values(seed, &[channels], DType::F32));
        let (scale, shift) = (scale?, shift?);
        let [scales, shifts] = [doubles(&scale)?, doubles(&shift)?];
        let normed = normalised(&doubles(&x)?, channels / groups * plane, true, EPS.into());
        let of_channel = |(i, x): (usize, f64)| x * scales[i / plane % channels] + shifts[i / plane % channels];
        let expected: Vec<f64> = normed.into_iter().enumerate().map(of_channel).collect();
        assert_close(&ops::group_norm(&x, &scale, &shift, groups, EPS, Activation::None)?, &expected);
        let silu: Vec<f64> = expected.iter().map(|x| x / (1. + (-x).exp())).collect();
        assert_close(&ops::group_norm(&x, &scale, &shift, groups, EPS, Activation::Silu)?, &silu);
        assert!(ops::group_norm(&x, &scale, &shift, 5, EPS, Activation::None).is_err(), "5 groups of {channels}");
        assert!(ops::group_norm(&x, &scale, &shift.narrow(0, 1, 2)?, groups, EPS, Activation::None).is_err());
    }
    Ok(())
}

#[test]
fn softmax_follows_its_definition() -> Result<()> {
    for columns in [1, 7, 64] {
        let x = values(1, &[columns, 2, 3], DType::F32)?.transpose(0, 2)?;
        for bias in [None, Some(&[columns][..]), Some(&[3, 1, columns]), Some(&[2, 1])] {
            let bias = bias.map(|shape| values(2, shape, DType::F32)).transpose()?;
            let sum = bias.as_ref().map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))?;
            let of_row = |row: &[f64]| {
                let powers: Vec<f64> = row.iter().map(|x| x.exp()).collect();
                let all: f64 = powers.iter().sum();
                powers.into_iter().map(move |power| power / all)
            };
            let expected: Vec<f64> = doubles(&sum)?.chunks(columns).flat_map(of_row).collect();
            assert_close(&ops::add_softmax(&x, bias.as_ref())?, &expected);
        }
    }
    // Numbers of 16 bits near 1024 are 1 apart.
    let x = values(1, &[2, 7], DType::F16)?;
    let far = Tensor::full(1024f32, (2, 1), x.device())?.to_dtype(DType::F16)?;
    let difference = (ops::add_softmax(&x, Some(&far))? - ops::softmax_last_dim(&x)?)?.abs()?.max_all()?;
    assert!(difference.to_dtype(DType::F32)?.to_scalar::<f32>()? < 1e-3, "the sum was rounded");
    assert!(ops::add_softmax(&values(1, &[2, 3], DType::F32)?, Some(&values(2, &[2], DType::F32)?)).is_err());
    Ok(())
}

#[test]
fn attention_follows_its_definition() -> Result<()> {
    const DIM: usize = 5;
    let (batch, heads, queries, keys) = (2, 3, 4, 7);
    // Heads side by side, as a matmul outputs them.
    let of = |seed, tokens| values(seed, &[batch, tokens, heads, DIM], DType::F64)?.transpose(1, 2);
    let (q, k, v) = (of(1, queries)?, of(2, keys)?, of(3, keys)?);
    let [qs, ks, vs] = [&q, &k, &v].map(doubles);
    let (qs, ks, vs) = (qs?, ks?, vs?);
    for shape in [None, Some(&[keys][..]), Some(&[heads, 1, 1]), Some(&[batch, 1, queries, keys])] {
        let bias = shape.map(|shape| values(4, shape, DType::F64)).transpose()?;
        let biases = match &bias {
            Some(bias) => doubles(&bias.broadcast_as((batch, heads, queries, keys))?)?,
            None => vec![0.; batch * heads * queries * keys],
        };
        let mut expected = Vec::new();
        for (row, q) in qs.chunks(DIM).enumerate() {
            let first = row / queries * keys;
            let of_key = |key: usize| {
                let product: f64 = q.iter().zip(&ks[(first + key) * DIM..]).map(|(q, k)| q * k).sum();
                (0.3 * product + biases[row * keys + key]).exp()
            };
            let weights: Vec<f64> = (0..keys).map(of_key).collect();
            let sum: f64 = weights.iter().sum();
            let of_column = |column: usize| -> f64 {
                weights.iter().enumerate().map(|(key, weight)| weight / sum * vs[(first + key) * DIM + column]).sum()
            };
            expected.extend((0..DIM).map(of_column));
        }
        let got = ops::attention(&q, &k, &v, bias.as_ref(), 0.3)?;
        assert_eq!(got.dims(), [batch, heads, queries, DIM]);
        assert_close(&got, &expected);
    }
    assert!(ops::attention(&q, &k, &q, None, 0.3).is_err(), "keys and values of other lengths");
    assert!(ops::attention(&q, &k, &v, Some(&q), 0.3).is_err(), "a bias of another shape");
    Ok(())
}

#[test]
fn matmul_epilogues_follow_their_definition() -> Result<()> {
    type Definition = fn(&Tensor) -> Result<Tensor>;
    let definitions: [(Activation, Definition); 5] = [
        (Activation::None, |x| Ok(x.clone())),
        (Activation::Relu, Tensor::relu),
        (Activation::Gelu, Tensor::gelu),
        (Activation::GeluErf, Tensor::gelu_erf),
        (Activation::Silu, Tensor::silu),
    ];
    let weight = values(2, &[10, 7], DType::F64)?;
    let bias = values(3, &[10], DType::F64)?;
    for x in [values(1, &[3, 2, 7], DType::F64)?, values(1, &[7, 2, 3], DType::F64)?.transpose(0, 2)?] {
        let product = x.contiguous()?.reshape((6, 7))?.matmul(&weight.t()?)?.reshape((3, 2, 10))?;
        for (activation, definition) in definitions {
            for bias in [None, Some(&bias)] {
                let sum = bias.map_or(Ok(product.clone()), |bias| product.broadcast_add(bias))?;
                let got = ops::linear_act(&x, &weight, bias, activation)?;
                assert_eq!(got.dims(), [3, 2, 10]);
                assert_close(&got, &doubles(&definition(&sum)?)?);
            }
            let (image, kernel) = (values(4, &[1, 2, 5, 5], DType::F64)?, values(5, &[4, 2, 3, 3], DType::F64)?);
            let config = ConvConfig::default().activation(activation);
            let plain = ops::conv2d(&image, &kernel, None, &ConvConfig::default())?;
            assert_close(&ops::conv2d(&image, &kernel, None, &config)?, &doubles(&definition(&plain)?)?);
        }
    }
    Ok(())
}

#[test]
fn split_heads_transposes_heads_before_tokens() -> Result<()> {
    let (x, bias) = (values(1, &[2, 5, 12], DType::F64)?, values(2, &[12], DType::F64)?);
    let (xs, biases) = (doubles(&x)?, doubles(&bias)?);
    for (heads, scale, biased) in [(1, 1., false), (3, 1., true), (4, 0.25, true), (12, 3., false)] {
        let dim = 12 / heads;
        let at = |i: usize| {
            let (batch, head, seq, element) = (i / 60, i / (dim * 5) % heads, i / dim % 5, i % dim);
            let column = head * dim + element;
            (xs[(batch * 5 + seq) * 12 + column] + if biased { biases[column] } else { 0. }) * scale
        };
        let got = ops::split_heads(&x, biased.then_some(&bias), heads, scale)?;
        assert!(got.dims() == [2, heads, 5, dim] && got.is_contiguous());
        assert_close(&got, &(0..120).map(at).collect::<Vec<_>>());
        assert_same_bits(&ops::merge_heads(&ops::split_heads(&x, None, heads, 1.)?)?, &x);
    }
    for heads in [0, 5] {
        let error = ops::split_heads(&x, None, heads, 1.).expect_err("no such heads").to_string();
        assert!(error.contains("do not divide"), "{error}");
    }
    Ok(())
}

#[test]
fn cat_adds_summands() -> Result<()> {
    let parts = [1, 4, 2].map(|columns| values(columns, &[2, columns, 3], DType::F32));
    let [a, b, c] = parts;
    let (a, b, c) = (a?, b?, c?);
    let sums = [(&a, Some(&a)), (&b, None), (&c, Some(&c))];
    let sum = Tensor::cat(&[&(&a + &a)?, &b, &(&c + &c)?], 1)?;
    assert_same_bits(&ops::cat_sums(&sums, 1, Activation::None)?, &sum);
    assert_same_bits(&ops::cat_sums(&sums, 1, Activation::Relu)?, &sum.relu()?);
    assert_same_bits(&ops::cat_sums(&sums, 1, Activation::Silu)?, &sum.silu()?);
    assert!(ops::cat_sums(&[(&a, Some(&b))], 1, Activation::None).is_err(), "a sum of different shapes");
    assert!(ops::cat_sums(&sums, 0, Activation::None).is_err(), "parts of different shapes");
    assert!(ops::cat_sums(&[], 0, Activation::None).is_err(), "nothing");
    Ok(())
}
