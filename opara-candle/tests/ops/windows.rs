//! Convolutions and pools.

use std::ops::Range;

use candle::{DType, Device::Cpu, Result, Tensor};
use opara_candle::ops::{self, Activation, ConvConfig, Padding, PoolConfig};
use proptest::prelude::*;

use crate::{assert_close, assert_same_bits, doubles, values};

/// The index without the padding of `before` elements; `None` in the padding.
fn inside(index: usize, before: usize, size: usize) -> Option<usize> {
    index.checked_sub(before).filter(|&i| i < size)
}

/// Computes a convolution by its definition, and its shape.
fn convolved(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &ConvConfig,
) -> Result<(Vec<f64>, [usize; 4])> {
    let ((batch, channels, h, w), (out, k, kh, kw)) = (x.dims4()?, weight.dims4()?);
    let (p, stride, dilation) = (config.padding, config.stride, config.dilation);
    let oh = (h + p.top + p.bottom - (kh - 1) * dilation - 1) / stride + 1;
    let ow = (w + p.left + p.right - (kw - 1) * dilation - 1) / stride + 1;
    let (mut x, weight) = (doubles(x)?, doubles(weight)?);
    if config.input_activation == Activation::Relu {
        x.iter_mut().for_each(|x| *x = x.max(0.));
    }
    let bias = bias.map_or(Ok(vec![0.; out]), doubles)?;
    let mut y = Vec::new();
    for i in 0..batch * out * oh * ow {
        let (item, o, row, column) = (i / (out * oh * ow), i / (oh * ow) % out, i / ow % oh, i % ow);
        let group = o / (out / config.groups);
        let mut sum = bias[o];
        for tap in 0..k * kh * kw {
            let (c, r, s) = (group * k + tap / (kh * kw), tap / kw % kh, tap % kw);
            let row = inside(row * stride + r * dilation, p.top, h);
            let column = inside(column * stride + s * dilation, p.left, w);
            if let Some((row, column)) = row.zip(column) {
                sum += x[((item * channels + c) * h + row) * w + column] * weight[o * k * kh * kw + tap];
            }
        }
        y.push(if config.activation == Activation::Relu { sum.max(0.) } else { sum });
    }
    Ok((y, [batch, out, oh, ow]))
}

/// Pools by the definition, with a given output shape.
fn pooled(max: bool, x: &Tensor, config: &PoolConfig, (oh, ow): (usize, usize)) -> Result<Vec<f64>> {
    let (batch, channels, h, w) = x.dims4()?;
    let (x, p) = (doubles(x)?, config.padding);
    // The number of elements in a window, with and without padding.
    let window = |index: usize, size: usize, before: usize, after: usize| -> (usize, Range<usize>) {
        let start = index * config.stride;
        let end = (start + config.kernel).min(size + before + after);
        (end - start, start.max(before) - before..end.min(size + before) - before)
    };
    let mut y = Vec::new();
    for plane in 0..batch * channels {
        for i in 0..oh * ow {
            let (all_rows, rows) = window(i / ow, h, p.top, p.bottom);
            let (all_columns, columns) = window(i % ow, w, p.left, p.right);
            let count = if config.count_padding { all_rows * all_columns } else { rows.len() * columns.len() };
            let seen: Vec<f64> =
                rows.flat_map(|row| x[(plane * h + row) * w..][columns.clone()].iter().copied()).collect();
            y.push(match max {
                true if seen.iter().any(|x| x.is_nan()) => f64::NAN,
                true => seen.into_iter().fold(f64::NEG_INFINITY, f64::max),
                false => seen.into_iter().sum::<f64>() / count as f64,
            });
        }
    }
    Ok(y)
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F64), Just(DType::F16), Just(DType::BF16)]
}

fn paddings(below: usize) -> impl Strategy<Value = Padding> {
    (0..below, 0..below, 0..below, 0..below).prop_map(|(top, bottom, left, right)| Padding { top, bottom, left, right })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..Default::default() })]

    #[test]
    fn convolutions_follow_their_definition(
        dtype in dtypes(),
        (batch, groups, k, outs) in (0usize..3, 1usize..4, 1usize..20, 1usize..14),
        (h, w) in (1usize..20, 1usize..40),
        (kh, kw) in (1usize..6, 1usize..6),
        (stride, dilation) in (1usize..4, 1usize..3),
        padding in paddings(4),
        relus: [bool; 2],
        biased: bool,
        strided: bool,
    ) {
        let [input_activation, activation] = relus.map(|relu| if relu { Activation::Relu } else { Activation::None });
        let config = ConvConfig::default().stride(stride).padding(padding).dilation(dilation).groups(groups).input_activation(input_activation).activation(activation);
        let x = match strided {
            true => values(1, &[batch, w, h + 1, groups * k], dtype)?.narrow(2, 1, h)?.transpose(1, 3)?,
            false => values(1, &[batch, groups * k, h, w], dtype)?,
        };
        // Scaled so that sums are of the order of one.
        let weight = (values(2, &[groups * outs, k, kh, kw], dtype)? / (k * kh * kw) as f64)?;
        let bias = values(3, &[groups * outs], dtype)?;
        let bias = biased.then_some(&bias);
        let y = ops::conv2d(&x, &weight, bias, &config);
        if (kh - 1) * dilation >= h + padding.top + padding.bottom || (kw - 1) * dilation >= w + padding.left + padding.right {
            prop_assert!(y.is_err());
            return Ok(());
        }
        let (expected, shape) = convolved(&x, &weight, bias, &config)?;
        let y = y?;
        prop_assert_eq!(y.dims(), shape);
        assert_close(&y, &expected);
    }

    #[test]
    fn depthwise_convolutions_follow_their_definition(
        dtype in dtypes(),
        (batch, groups, outs) in (1usize..3, 1usize..20, 1usize..6),
        (h, w) in (5usize..20, 5usize..40),
        (kh, kw) in (1usize..6, 1usize..6),
        (stride, dilation) in (1usize..4, 1usize..3),
        padding in paddings(4),
    ) {
        let config = ConvConfig::default().stride(stride).padding(padding).dilation(dilation).groups(groups);
        let x = values(1, &[batch, groups, h, w], dtype)?;
        let weight = (values(2, &[groups * outs, 1, kh, kw], dtype)? / (kh * kw) as f64)?;
        let bias = values(3, &[groups * outs], dtype)?;
        prop_assume!((kh - 1) * dilation < h + padding.top + padding.bottom);
        prop_assume!((kw - 1) * dilation < w + padding.left + padding.right);
        let (expected, shape) = convolved(&x, &weight, Some(&bias), &config)?;
        let y = ops::conv2d(&x, &weight, Some(&bias), &config)?;
        prop_assert_eq!(y.dims(), shape);
        assert_close(&y, &expected);
    }

    #[test]
    fn pools_follow_their_definition(
        dtype in dtypes(),
        (batch, channels) in (0usize..3, 1usize..4),
        (h, w) in (1usize..20, 1usize..40),
        (kernel, stride) in (1usize..6, 1usize..5),
        padding in paddings(5),
        ceil: bool,
        count_padding: bool,
        strided: bool,
        nan in prop::option::of(0usize..100),
    ) {
        let config = PoolConfig::new(kernel, stride).padding(padding).ceil(ceil).count_padding(count_padding);
        let mut x = match strided {
            true => values(1, &[batch, w, h + 1, channels], dtype)?.narrow(2, 1, h)?.transpose(1, 3)?,
            false => values(1, &[batch, channels, h, w], dtype)?,
        };
        if let Some(at) = nan.filter(|&at| at < x.elem_count()) {
            let mut values = doubles(&x)?;
            values[at] = f64::NAN;
            x = Tensor::from_vec(values, x.shape(), &Cpu)?.to_dtype(dtype)?;
        }
        let outputs = |size: usize, before: usize, after: usize| -> usize {
            (0..).take_while(|i| {
                let start = i * stride;
                let end = start + kernel;
                end <= size + before + after || ceil && start < size + before && end < size + before + after + stride
            }).count()
        };
        let output = (outputs(h, padding.top, padding.bottom), outputs(w, padding.left, padding.right));
        let most = padding.top.max(padding.bottom).max(padding.left).max(padding.right);
        let fits = kernel <= h + padding.top + padding.bottom && kernel <= w + padding.left + padding.right;
        let (max, mean) = (ops::max_pool2d(&x, &config), ops::avg_pool2d(&x, &config));
        if most >= kernel || !fits {
            prop_assert!(max.is_err() && mean.is_err());
            return Ok(());
        }
        let (max, mean) = (max?, mean?);
        prop_assert_eq!(max.dims(), [batch, channels, output.0, output.1]);
        prop_assert_eq!(mean.dims(), max.dims());
        assert_close(&max, &pooled(true, &x, &config, output)?);
        assert_close(&mean, &pooled(false, &x, &config, output)?);
    }
}

#[test]
fn pools_accept_an_empty_view_that_begins_past_its_tensor() -> Result<()> {
    let x = Tensor::zeros((0, 4, 3, 1), DType::F32, &Cpu)?.narrow(2, 1, 2)?.transpose(1, 3)?;
    for y in [ops::max_pool2d(&x, &PoolConfig::new(1, 1))?, ops::avg_pool2d(&x, &PoolConfig::new(1, 1))?] {
        assert_eq!(y.dims(), [0, 1, 2, 4]);
    }
    Ok(())
}

/// Convolutions for every implementation, some with more work than one thread gets.
fn convolutions() -> Vec<(ConvConfig, [usize; 4], [usize; 4])> {
    let plain = ConvConfig::default();
    let padded = |padding: usize| plain.padding(padding);
    vec![
        (plain, [1, 192, 28, 28], [61, 192, 1, 1]),
        (padded(1), [1, 96, 28, 28], [128, 96, 3, 3]),
        (padded(1), [1, 384, 35, 35], [37, 384, 3, 3]),
        (padded(3).stride(2), [2, 3, 113, 99], [64, 3, 7, 7]),
        (padded(1), [40, 16, 9, 9], [32, 16, 3, 3]),
        (padded(1).groups(32), [3, 128, 14, 14], [256, 4, 3, 3]),
        (padded(2).groups(168), [2, 168, 42, 42], [168, 1, 5, 5]),
    ]
}

#[test]
fn bits_depend_neither_on_the_number_of_threads_nor_on_the_batch() -> anyhow::Result<()> {
    let pool = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pools = [pool(1)?, pool(2)?, pool(5)?];
    let assert_one_answer = |x: &Tensor, f: &(dyn Fn(&Tensor) -> Result<Tensor> + Sync)| -> anyhow::Result<()> {
        let y = f(x)?;
        for pool in &pools {
            assert_same_bits(&pool.install(|| f(x))?, &y);
        }
        let items = (0..x.dim(0)?).map(|i| f(&x.narrow(0, i, 1)?)).collect::<Result<Vec<_>>>()?;
        assert_same_bits(&Tensor::cat(&items, 0)?, &y);
        Ok(())
    };
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for (config, x, weight) in convolutions() {
            let (weight, bias) = (values(2, &weight, dtype)?, values(3, &weight[..1], dtype)?);
            assert_one_answer(&values(1, &x, dtype)?, &|x| ops::conv2d(x, &weight, Some(&bias), &config))?;
        }
        let x = values(1, &[2, 256, 57, 57], dtype)?;
        let config = PoolConfig::new(3, 2).padding(1).ceil(true);
        assert_one_answer(&x, &|x| ops::max_pool2d(x, &config))?;
        assert_one_answer(&x, &|x| ops::avg_pool2d(x, &config))?;
        assert_one_answer(&x, &|x| ops::avg_pool2d(x, &PoolConfig::new(57, 1)))?;
    }
    Ok(())
}

#[test]
fn large_convolutions_agree_with_candles() -> anyhow::Result<()> {
    for (config, x, weight) in convolutions() {
        let x = values(1, &x, DType::F32)?;
        let k: usize = weight[1..].iter().product();
        let weight = (values(2, &weight, DType::F32)? / (k as f64).sqrt())?;
        let expected = x.conv2d(&weight, config.padding.top, config.stride, config.dilation, config.groups)?;
        assert_close(&ops::conv2d(&x, &weight, None, &config)?, &doubles(&expected)?);
    }
    Ok(())
}

#[test]
fn an_empty_batch_gives_an_empty_result() -> Result<()> {
    let x = Tensor::zeros((0, 4, 9, 9), DType::F32, &Cpu)?;
    for (groups, k) in [(1, 4), (4, 1)] {
        let config = ConvConfig::default().groups(groups);
        let y = ops::conv2d(&x, &values(2, &[8, k, 3, 3], DType::F32)?, None, &config)?;
        assert_eq!(y.dims(), [0, 8, 7, 7]);
    }
    assert_eq!(ops::max_pool2d(&x, &PoolConfig::new(3, 2))?.dims(), [0, 4, 4, 4]);
    assert_eq!(ops::avg_pool2d(&x, &PoolConfig::new(9, 1))?.dims(), [0, 4, 1, 1]);
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_errors() -> Result<()> {
    let (x, weight) = (values(1, &[1, 4, 9, 9], DType::F32)?, values(2, &[8, 4, 3, 3], DType::F32)?);
    let config = ConvConfig::default();
    let refused = |x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig, part: &str| {
        let error = ops::conv2d(x, weight, bias, config).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&x, &weight, None, &config.groups(2), "in 2 groups");
    refused(&x, &weight, None, &config.groups(0), "in 0 groups");
    refused(&x, &weight, None, &config.stride(0), "at least 1");
    refused(&x, &weight, None, &config.dilation(5), "does not fit");
    refused(&x, &weight, None, &config.dilation(1 << 63), "does not fit");
    refused(&x, &weight, None, &config.padding(1 << 40), "more than memory holds");
    refused(&x, &weight, None, &config.padding(usize::MAX), "more than memory holds");
    refused(&x, &weight, Some(&values(3, &[7], DType::F32)?), &config, "a bias of [7]");
    refused(&x, &weight.to_dtype(DType::F64)?, None, &config, "unexpected dtype");
    refused(&x.narrow(2, 0, 0)?, &weight, None, &config.padding(2), "may be empty");
    refused(&x.narrow(1, 0, 0)?, &weight.narrow(1, 0, 0)?, None, &config, "may be empty");
    Ok(())
}

#[test]
fn subsample_takes_every_nth_pixel_with_zeros_past_the_end() -> Result<()> {
    const FAR: usize = 1 << 40;
    let cases = [(5, 4, 0, 2), (5, 4, 1, 2), (4, 6, 1, 2), (1, 1, 1, 2), (7, 3, 2, 3), (2, 9, 5, 4), (3, 2, 0, 1)];
    for (h, w, start, stride) in cases.into_iter().chain([(3, 2, FAR, 2), (3, 2, 1, FAR)]) {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let larger = values(1, &[2, 3, h + 2, w + 1], dtype)?;
            let views =
                [larger.narrow(2, 1, h)?.narrow(3, 0, w)?, larger.narrow(2, 0, h)?.narrow(3, 1, w)?.contiguous()?];
            for x in views {
                let pixels = doubles(&x)?;
                let (oh, ow) = (h.div_ceil(stride), w.div_ceil(stride));
                let expected = (0..6 * oh * ow).map(|i| {
                    let (plane, row, column) = (i / (oh * ow), start + i / ow % oh * stride, start + i % ow * stride);
                    if row < h && column < w {
                        pixels[(plane * h + row) * w + column]
                    } else {
                        0.
                    }
                });
                let y = ops::subsample(&x, start, stride)?;
                assert_eq!(y.dims(), [2, 3, oh, ow]);
                assert_eq!(doubles(&y)?, expected.collect::<Vec<_>>(), "{h} by {w}, {start}, {stride}");
            }
        }
    }
    let x = values(1, &[1, 1, 2, 2], DType::F32)?;
    assert!(ops::subsample(&x, 0, 0).is_err() && ops::subsample(&x.squeeze(0)?, 0, 2).is_err());
    Ok(())
}

/// Padding every row once took 90 GB here.
#[test]
fn long_one_row_convolutions_take_little_memory() -> Result<()> {
    let x = values(1, &[1, 1, 1, 480_000], DType::F32)?;
    let weight = (values(2, &[1, 1, 1, 400], DType::F32)? / 400.)?;
    let config = ConvConfig::default().stride(16_000);
    let (expected, shape) = convolved(&x, &weight, None, &config)?;
    let y = ops::conv2d(&x, &weight, None, &config)?;
    assert_eq!(y.dims(), shape);
    assert_close(&y, &expected);
    Ok(())
}

#[test]
fn strides_and_dilations_may_exceed_the_image() -> Result<()> {
    const FAR: usize = 1 << 40;
    let (x, weight) = (values(1, &[2, 3, 7, 5], DType::F32)?, values(2, &[4, 3, 3, 2], DType::F32)?);
    let config = ConvConfig::default().padding((2, 1)).stride(FAR);
    let (expected, shape) = convolved(&x, &weight, None, &config)?;
    let y = ops::conv2d(&x, &weight, None, &config)?;
    assert_eq!((y.dims(), &shape), (&[2, 4, 1, 1][..], &[2, 4, 1, 1]));
    assert_close(&y, &expected);
    let pixel = weight.narrow(2, 1, 1)?.narrow(3, 1, 1)?;
    let config = ConvConfig::default().dilation(FAR);
    assert_close(&ops::conv2d(&x, &pixel, None, &config)?, &convolved(&x, &pixel, None, &config)?.0);
    for ceil in [false, true] {
        let config = PoolConfig::new(3, FAR).padding(1).ceil(ceil);
        let (maxima, means) = (ops::max_pool2d(&x, &config)?, ops::avg_pool2d(&x, &config)?);
        assert_eq!((maxima.dims(), means.dims()), (&[2, 3, 1, 1][..], &[2, 3, 1, 1][..]));
        assert_close(&maxima, &pooled(true, &x, &config, (1, 1))?);
        assert_close(&means, &pooled(false, &x, &config, (1, 1))?);
    }
    Ok(())
}

#[test]
fn upsampling_repeats_the_nearest_pixel_before() -> Result<()> {
    let x = values(1, &[2, 3, 4, 5], DType::F32)?;
    let xs = doubles(&x)?;
    for (rows, columns) in [(8, 10), (12, 5), (7, 11), (3, 2)] {
        let of = |i: usize| {
            let (row, column) = (i / columns % rows * 4 / rows, i % columns * 5 / columns);
            xs[(i / columns / rows * 4 + row) * 5 + column]
        };
        let expected: Vec<f64> = (0..6 * rows * columns).map(of).collect();
        let y = ops::upsample_nearest2d(&x, rows, columns)?;
        assert_eq!(y.dims(), [2, 3, rows, columns]);
        assert_close(&y, &expected);
    }
    assert!(ops::upsample_nearest2d(&x.flatten_to(1)?, 8, 10).is_err());
    Ok(())
}
