//! Extreme operands: operators give the results of plain f32. Large numbers stay finite, infinities stay infinite
//! unless they meet their opposite or zero, NaN stays NaN, and a sum that is too large is infinite.

use candle::{DType, Device, Module, Result, Tensor, D};
use opara_candle::ops::{self, Activation, ConvConfig, PoolConfig};

use crate::common::{gpu, waves, CPU};

/// The largest numbers of each type, numbers too large to be split for tensor cores, infinities and NaN.
fn edges(dtype: DType) -> Vec<f32> {
    let largest = match dtype {
        DType::F16 => vec![65504., -65504.],
        DType::BF16 => vec![f32::from_bits(0x7f7f_0000), 1e35, -1e35],
        _ => vec![f32::MAX, 3e38, -3e38, 1e35, -1e35, 4.2e34, 65504., f32::from_bits(0x7f7f_0000)],
    };
    largest.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]).collect()
}

/// Dtypes with their relative error per element.
const DTYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

/// Numbers between 0.1 and 0.4: they do not cancel, and a sum of a few of them times the largest number does not
/// overflow.
fn ordinary(i: usize, shape: impl Into<candle::Shape>) -> Result<Tensor> {
    (waves(i, shape)? * 0.15)? + 0.25
}

/// The same except for one element, rounded to a dtype: as f32 on the host, and on the device.
fn with(x: &Tensor, at: usize, edge: f32, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut elements = x.flatten_all()?.to_vec1::<f32>()?;
    elements[at] = edge;
    let x = Tensor::from_vec(elements, x.shape(), CPU)?.to_dtype(dtype)?;
    Ok((x.to_dtype(DType::F32)?, x.to_device(device)?))
}

/// Asserts that each element is close to the result of f32, or the same infinity, or NaN.
#[track_caller]
fn assert_alike(got: &Tensor, expected: &Tensor, tolerance: f64, of: impl std::fmt::Display) {
    let dtype = got.dtype();
    let elements = |x: &Tensor| x.to_device(CPU)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    // An infinity of the dtype may be a finite number in f32.
    let expected = expected.to_dtype(dtype).and_then(|expected| elements(&expected)).expect("a tensor to read");
    let got = elements(got).expect("a tensor to read");
    assert_eq!(got.len(), expected.len(), "{of}");
    for (at, (got, expected)) in got.into_iter().zip(expected).enumerate() {
        let is_near = (got - expected).abs() <= tolerance * expected.abs().max(1e-3);
        let is_alike = got == expected || (got.is_nan() && expected.is_nan()) || (is_near && expected.is_finite());
        assert!(is_alike, "{of}: {got:e} at {at} where f32 gives {expected:e}");
    }
}

/// max(x, 0). For NaN, some kernels give NaN, and others, like candle's, zero: there it takes the value of `got`.
fn relu_like(expected: &Tensor, got: &Tensor) -> Result<Tensor> {
    let got = got.to_dtype(expected.dtype())?.to_device(expected.device())?.contiguous()?;
    expected.ne(expected)?.where_cond(&got, &expected.relu()?)
}

#[test]
fn matmuls_of_extreme_operands() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Shapes for which a tensor core kernel is the fastest, and others.
    for ((rows, inner, columns), (dtype, tolerance)) in
        [(128, 768, 3072), (128, 512, 2048), (70, 40, 56), (1, 400, 400), (5, 3, 7)]
            .into_iter()
            .flat_map(|s| DTYPES.map(|d| (s, d)))
    {
        let (x, weight) = (ordinary(0, (rows, inner))?, ordinary(1, (columns, inner))?);
        for edge in edges(dtype) {
            for (of_x, of_weight) in [(edge, 0.25), (0.25, edge)] {
                let (x, x_gpu) = with(&x, rows / 2 * inner + inner - 2, of_x, dtype, &device)?;
                let (weight, weight_gpu) = with(&weight, columns / 3 * inner + 1, of_weight, dtype, &device)?;
                let expected = x.to_device(&device)?.matmul(&weight.to_device(&device)?.t()?)?;
                let of = format!("{rows} x {inner} x {columns} in {dtype:?}, {of_x:e} and {of_weight:e}");
                assert_alike(&ops::linear(&x_gpu, &weight_gpu, None)?, &expected, tolerance, &of);
                let bias = Tensor::zeros(columns, dtype, &device)?;
                let got = ops::linear_act(&x_gpu, &weight_gpu, Some(&bias), Activation::Relu)?;
                assert_alike(&got, &relu_like(&expected, &got)?, tolerance, format!("{of}, with relu"));
            }
        }
    }
    Ok(())
}

#[test]
fn sums_that_overflow_are_infinite() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (rows, inner, columns) in [(128, 768, 3072), (64, 64, 64)] {
        let row = |value: f32| Tensor::full(value, (rows, inner), &device);
        let ones = Tensor::ones((columns, inner), DType::F32, &device)?;
        let all = |y: Tensor| y.flatten_all()?.to_vec1::<f32>();
        for value in [3e38, 1e37, -3e38, -1e37] {
            let got = all(ops::linear(&row(value)?, &ones, None)?)?;
            assert!(got.iter().all(|&y| y == f32::INFINITY.copysign(value)), "{value:e}: {:?}", &got[..4]);
        }
        // Within the range of f32, and beyond the limit of the split tensor core kernels.
        let value = 3e38 / inner as f32;
        let got = all(ops::linear(&row(value)?, &ones, None)?)?;
        assert!(got.iter().all(|&y| (y / 3e38 - 1.).abs() < 1e-4), "{value:e}: {:?}", &got[..4]);
    }
    Ok(())
}

#[test]
fn sums_in_16_bits_do_not_overflow_in_between() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Half of the columns sum to 4 times the largest f16, the other half to the opposite.
    for (rows, columns) in [(1, 64), (8, 64), (64, 64), (128, 256)] {
        let inner = 8192;
        let x: Vec<f32> = (0..rows * inner).map(|i| if i % inner < inner / 2 { 64. } else { -64. }).collect();
        let x = Tensor::from_vec(x, (rows, inner), &device)?.to_dtype(DType::F16)?;
        let ones = Tensor::ones((columns, inner), DType::F16, &device)?;
        let got = ops::linear(&x, &ones, None)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(got.iter().all(|&y| y == 0.), "{rows} x {columns}: {:?}", &got[..4]);
    }
    Ok(())
}

/// Attention in f32 with candle's operators; also returns the largest finite score.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<(Tensor, f32)> {
    let scores = (q * scale)?.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let sizes = scores.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::abs);
    let largest = sizes.filter(|size| size.is_finite()).fold(0., f32::max);
    let weights = (scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?).exp()?;
    Ok((weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.matmul(v)?, largest))
}

#[test]
fn attention_of_extreme_operands() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dim, (dtype, tolerance)) in [32, 64].into_iter().flat_map(|dim| DTYPES.map(|d| (dim, d))) {
        let (heads, queries, keys) = (2, 70, 130);
        let q = ordinary(0, (1, heads, queries, dim))?;
        let [k, v] = [ordinary(1, (1, heads, keys, dim))?, ordinary(2, (1, heads, keys, dim))?];
        // In the second head: a query, a key, and a value, each beyond the first block.
        let at = [(queries + 66) * dim + 5, (keys + 101) * dim + 7, (keys + 99) * dim + 9];
        for ((edge, which), scale) in
            edges(dtype).into_iter().flat_map(|e| [0, 1, 2].map(|w| (e, w))).flat_map(|e| [0.125, 1.].map(|s| (e, s)))
        {
            let of = |i: usize, x: &Tensor| with(x, at[i], if i == which { edge } else { 0.25 }, dtype, &device);
            let ((q, q_gpu), (k, k_gpu), (v, v_gpu)) = (of(0, &q)?, of(1, &k)?, of(2, &v)?);
            let (expected, largest) = attention(&q, &k, &v, scale)?;
            let got = ops::attention(&q_gpu, &k_gpu, &v_gpu, None, scale)?;
            let what = ["query", "key", "value"][which];
            assert_alike(
                &got.contiguous()?,
                &expected,
                // The error of a score scales with its magnitude, and the error of a weight with that of its score.
                2. * f64::max(tolerance, 1e-4) + f64::from(largest * f32::EPSILON),
                format!("{dim} in {dtype:?}, scale {scale}, a {what} of {edge:e}"),
            );
        }
    }
    Ok(())
}

#[test]
fn attention_values_near_the_largest_number_do_not_overflow() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let largest = [(DType::F32, 3e38f32), (DType::BF16, f32::from_bits(0x7f7f_0000)), (DType::F16, 65504.)];
    for (tokens, (dtype, largest)) in [70, 300].into_iter().flat_map(|tokens| largest.map(|of| (tokens, of))) {
        let q = ordinary(0, (1, 2, tokens, 64))?.to_dtype(dtype)?.to_device(&device)?;
        let v = Tensor::full(largest, (1, 2, tokens, 64), &device)?.to_dtype(dtype)?;
        let got = ops::attention(&q, &q, &v, None, 0.125)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        let are_near = got.iter().all(|y| (y / f64::from(largest) - 1.).abs() < 1e-2);
        assert!(are_near, "{tokens} tokens in {dtype:?}: {:?}", &got[..4]);
    }
    Ok(())
}

#[test]
fn convolutions_of_extreme_operands() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Input channels, output channels, groups, window.
    let shapes = [(192, 64, 1, 3), (64, 32, 1, 1), (832, 128, 1, 1), (96, 128, 1, 5), (32, 32, 32, 3), (32, 32, 32, 5)];
    for ((channels, out, groups, window), (dtype, tolerance)) in shapes.into_iter().flat_map(|s| DTYPES.map(|d| (s, d)))
    {
        // candle's f32 convolutions use TF32, too.
        let tolerance = f64::max(tolerance, 2e-3);
        let side = 14;
        let x = ordinary(0, (1, channels, side, side))?;
        let weight = (ordinary(1, (out, channels / groups, window, window))? * 0.25)?.to_dtype(dtype)?;
        let bias = Tensor::zeros(out, dtype, &device)?;
        for edge in edges(dtype).into_iter().filter(|edge| *edge != f32::MAX) {
            let (x, x_gpu) = with(&x, (channels / 2 * side + 6) * side + 7, edge, dtype, &device)?;
            let expected = x.conv2d(&weight.to_dtype(DType::F32)?, 0, 1, 1, groups)?;
            for activation in [Activation::None, Activation::Relu] {
                let config = ConvConfig::default().groups(groups).activation(activation);
                let got = ops::conv2d(&x_gpu, &weight.to_device(&device)?, Some(&bias), &config)?.contiguous()?;
                let expected = match activation {
                    Activation::Relu => relu_like(&expected, &got)?,
                    _ => expected.clone(),
                };
                let of = format!(
                    "{channels} to {out} in {groups} groups, {window} in {dtype:?}, {activation:?} of {edge:e}"
                );
                assert_alike(&got, &expected, tolerance, of);
            }
        }
    }
    Ok(())
}

/// One infinity or NaN reaches the windows that have it under a tap, and no other: dilated windows, sequences, few channels, groups. In 16
/// bits cuDNN gives 0 for minus infinity where channels are few, and NaN in neighbouring groups.
#[test]
fn convolutions_bring_infinities_to_their_windows_alone() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let plain = ConvConfig::default();
    let cases: [([usize; 4], [usize; 4], ConvConfig); 12] = [
        ([2, 16, 65, 1], [16, 16, 3, 1], plain.padding((2, 0)).dilation(2)),
        ([2, 16, 65, 1], [16, 16, 3, 1], plain.padding((1, 0))),
        ([1, 4, 40, 1], [16, 4, 3, 1], plain.padding((1, 0)).stride(2)),
        ([1, 1, 1, 65], [24, 1, 1, 7], plain.padding((0, 3))),
        ([2, 16, 15, 17], [16, 16, 3, 3], plain.padding(2).dilation(2)),
        ([2, 8, 14, 17], [24, 8, 3, 3], plain.padding(1).stride(2)),
        ([2, 8, 14, 17], [24, 8, 5, 5], plain.dilation(2)),
        ([1, 16, 15, 8], [16, 8, 3, 3], plain.padding(1).groups(2)),
        ([1, 12, 15, 8], [24, 3, 3, 3], plain.padding(2).dilation(2).groups(4)),
        ([1, 16, 15, 8], [16, 1, 3, 3], plain.padding(2).dilation(2).groups(16)),
        ([2, 64, 14, 14], [64, 64, 3, 3], plain.padding(1)),
        ([2, 24, 14, 17], [16, 24, 1, 1], plain),
    ];
    let kind = |y: f64| match y {
        y if y.is_finite() => "finite",
        y if y.is_nan() => "NaN",
        y if y > 0. => "infinite",
        _ => "minus infinite",
    };
    let mut wrong = Vec::new();
    for ((shape, of_weight, config), dtype) in cases.iter().flat_map(|case| DTYPES.map(|(dtype, _)| (case, dtype))) {
        let weight = waves(1, of_weight.to_vec())?.to_dtype(dtype)?;
        let weight = weight.ge(0.)?.where_cond(&(&weight + 0.25)?, &(&weight - 0.25)?)?;
        let bias = waves(2, of_weight[0])?.to_dtype(dtype)?;
        for edge in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let len: usize = shape.iter().product();
            let (_, x) = with(&waves(0, shape.to_vec())?, len / 2, edge, dtype, CPU)?;
            let [wide_x, wide_weight, wide_bias] = [&x, &weight, &bias].map(|of| of.to_dtype(DType::F64));
            let expected = ops::conv2d(&wide_x?, &wide_weight?, Some(&wide_bias?), config)?;
            let residual = waves(3, expected.dims().to_vec())?.to_dtype(dtype)?.to_device(&device)?;
            let (x, weight, bias) = (x.to_device(&device)?, weight.to_device(&device)?, bias.to_device(&device)?);
            for activation in [Activation::None, Activation::Relu] {
                let config = config.activation(activation);
                let alone = ops::conv2d(&x, &weight, Some(&bias), &config)?;
                let added = ops::add_conv2d(&x, &weight, Some(&bias), &residual, &config)?;
                for (how, got) in [("alone", alone), ("added to", added)] {
                    let expected = expected.flatten_all()?.to_vec1::<f64>()?;
                    let got = got.to_device(CPU)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
                    let is_16_bit = dtype != DType::F32;
                    let is_like = |expected: f64, got: f64| match activation {
                        _ if is_16_bit && expected == f64::NEG_INFINITY && got == 0. => true,
                        _ if is_16_bit && config.groups > 1 && got.is_nan() => true,
                        Activation::Relu if expected.is_nan() => got.is_nan() || got == 0.,
                        Activation::Relu => kind(expected.max(0.)) == kind(got),
                        _ => kind(expected) == kind(got),
                    };
                    let unlike = expected.iter().zip(&got).enumerate().filter(|(_, (e, g))| !is_like(**e, **g));
                    let unlike: Vec<_> = unlike.map(|(at, (e, g))| (at, *e, *g)).collect();
                    if let Some(first) = unlike.first() {
                        let of = format!("{shape:?} {of_weight:?} {config:?} in {dtype:?}, {edge} {how}");
                        wrong.push(format!("{} of {}, first {first:?}: {of}", unlike.len(), got.len()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn norms_and_pools_of_extreme_operands() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (rows, columns) = (5, 96);
    let x = ordinary(0, (rows, columns))?;
    let (scale, shift) = (ordinary(1, columns)?.to_device(&device)?, ordinary(2, columns)?.to_device(&device)?);
    for edge in edges(DType::F32) {
        let (_, x) = with(&x, 2 * columns + 50, edge, DType::F32, &device)?;
        let both = [
            (ops::softmax_last_dim(&x)?, candle_nn::ops::softmax_last_dim(&x)?, "softmax"),
            (
                ops::layer_norm(&x, &scale, &shift, 1e-5)?,
                candle_nn::ops::layer_norm(&x, &scale, &shift, 1e-5)?,
                "layer norm",
            ),
            (ops::rms_norm(&x, &scale, 1e-5)?, candle_nn::ops::rms_norm(&x, &scale, 1e-5)?, "RMS norm"),
        ];
        // Beside a large number, mean and variance lose all digits of the others: only infinities and NaN are compared.
        let only_row = |x: &Tensor| -> Result<Tensor> { x.narrow(0, 2, 1)?.contiguous() };
        for (got, expected, of) in both {
            let of = format!("{of} of {edge:e}");
            if of.starts_with("softmax") || edge.abs() > 1e30 || edge.is_nan() {
                assert_alike(&only_row(&got)?, &only_row(&expected)?, 1e-3, &of);
            }
            for row in [0, 1, 3, 4] {
                let [got, expected] = [&got, &expected].map(|x| x.narrow(0, row, 1).and_then(|x| x.contiguous()));
                // Near zero, a norm is a difference of larger numbers.
                assert_alike(&got?, &expected?, 1e-2, format!("a row beside {of}"));
            }
        }
        let picture = with(&ordinary(3, (1, 8, 14, 14))?, 3 * 196 + 6 * 14 + 7, edge, DType::F32, &device)?;
        for (kernel, stride) in [(2, 2), (3, 1), (3, 2)] {
            let config = PoolConfig::new(kernel, stride);
            let expected = picture.0.avg_pool2d_with_stride(kernel, stride)?;
            assert_alike(
                &ops::avg_pool2d(&picture.1, &config)?.contiguous()?,
                &expected,
                1e-5,
                format!("mean of {edge:e}"),
            );
            if !edge.is_nan() {
                let expected = picture.0.max_pool2d_with_stride(kernel, stride)?;
                assert_alike(
                    &ops::max_pool2d(&picture.1, &config)?.contiguous()?,
                    &expected,
                    0.,
                    format!("maximum of {edge:e}"),
                );
            }
        }
    }
    Ok(())
}

#[test]
fn activations_of_extreme_operands() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for activation in [Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu] {
        // For very negative numbers, some of candle's activations give NaN, and some zero.
        for edge in edges(DType::F32).into_iter().filter(|edge| *edge > -1e36 && !edge.is_nan()) {
            let x = Tensor::full(edge, (2, 8), CPU)?;
            let identity = Tensor::eye(8, DType::F32, &device)?;
            // Zero times infinity is NaN, so use only one column.
            let (x, weight) = match edge.is_infinite() {
                true => (x.narrow(1, 0, 1)?.contiguous()?, Tensor::ones((4, 1), DType::F32, &device)?),
                false => (x, identity),
            };
            let expected = activation.forward(&x.matmul(&weight.to_device(CPU)?.t()?)?)?;
            let got = ops::linear_act(&x.to_device(&device)?, &weight, None, activation)?;
            assert_alike(&got, &expected, 1e-5, format!("{activation:?} of {edge:e}"));
        }
    }
    Ok(())
}
