//! The library's operators on a GPU, compared with the same operators on the CPU in f64. Tests skip without a GPU or
//! the feature `cuda`, and say so.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod edges;
mod windows;

use candle::{DType, Device, Result, Tensor};
use common::{gpu, layouts, replayed, same_bits, waves, CPU};
use opara_candle::ops::{self, Activation};
use opara_candle::Mode;

/// Dtypes with their allowed relative error.
const DTYPES: [(DType, f64); 4] = [(DType::F64, 1e-12), (DType::F32, 2e-3), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu];

/// Asserts that `got` is close to `expected`, relative to the largest value of the latter.
#[track_caller]
fn assert_near(got: &Tensor, expected: &Tensor, tolerance: f64, of: impl std::fmt::Display) {
    let error = || -> Result<f64> {
        let got = got.to_device(CPU)?.to_dtype(DType::F64)?;
        let scale = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?.max(1e-6);
        Ok((got - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()? / scale)
    };
    assert_eq!(got.dims(), expected.dims(), "shape of {of}");
    let error = error().expect("tensors can be compared");
    assert!(error <= tolerance, "{of}: off by {error:.2e}");
}

/// A tensor rounded to a dtype: in f64 on the host, and on the device.
fn both(x: &Tensor, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let x = x.to_dtype(dtype)?;
    Ok((x.to_dtype(DType::F64)?, x.to_device(device)?))
}

#[test]
fn concatenations_agree_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, _) in DTYPES {
        for channels in [vec![16, 8, 24], vec![3, 1, 7, 2], vec![4; 8], vec![5; 9]] {
            let parts = channels.iter().enumerate().map(|(i, &c)| waves(i, (2, c, 5, 3))?.to_dtype(dtype));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let on_gpu = parts.iter().map(|part| part.to_device(&device)).collect::<Result<Vec<_>>>()?;
            let inside: Result<Vec<_>> =
                on_gpu.iter().map(|x| x.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))).collect();
            let mixed = [&on_gpu[..1], &inside.as_ref().expect("views")[1..]].concat();
            let expected = Tensor::cat(&parts, 1)?.to_dtype(DType::F64)?;
            for given in [on_gpu, inside?, mixed] {
                let got = ops::cat(&given.iter().collect::<Vec<_>>(), 1)?;
                assert_near(&got, &expected, 0., format!("{channels:?} in {dtype:?}"));
            }
        }
        let rows = (0..3).map(|i| waves(i, (i + 1, 6))?.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
        let on_gpu = rows.iter().map(|part| part.to_device(&device)).collect::<Result<Vec<_>>>()?;
        let got = ops::cat(&on_gpu.iter().collect::<Vec<_>>(), 0)?;
        assert_near(&got, &Tensor::cat(&rows, 0)?.to_dtype(DType::F64)?, 0., format!("rows in {dtype:?}"));
    }
    Ok(())
}

#[test]
fn concatenations_of_sums() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, _) in DTYPES {
        for channels in [vec![16, 8, 24], vec![3, 1, 7, 2], vec![4; 8], vec![2; 6], vec![5; 9]] {
            let parts = channels.iter().enumerate().map(|(i, &c)| waves(i, (2, c, 5, 3))?.to_dtype(dtype));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let on_gpu = parts.iter().map(|part| part.to_device(&device)).collect::<Result<Vec<_>>>()?;
            let inside: Result<Vec<_>> =
                on_gpu.iter().map(|x| x.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))).collect();
            // Every second part is a sum.
            let sums = |given: &[Tensor], activation| {
                let other = |(i, part)| (part, (i % 2 == 0).then_some(part));
                ops::cat_sums(&given.iter().enumerate().map(other).collect::<Vec<_>>(), 1, activation)
            };
            for activation in ACTIVATIONS {
                let tolerance = if matches!(activation, Activation::None | Activation::Relu) { 0. } else { 3e-2 };
                let expected = sums(&parts, activation)?.to_dtype(DType::F64)?;
                for given in [&on_gpu, inside.as_ref().expect("views")] {
                    let of = format!("{channels:?}, {activation:?}, in {dtype:?}");
                    assert_near(&sums(given, activation)?, &expected, tolerance, of);
                }
            }
        }
    }
    let x = waves(0, (1, 2, 3, 3))?.to_device(&device)?;
    assert!(ops::cat_sums(&[(&x, None), (&x.narrow(2, 0, 1)?, None)], 1, Activation::None).is_err());
    assert!(ops::cat_sums(&[(&x, Some(&x.to_dtype(DType::F16)?)), (&x, None)], 1, Activation::None).is_err());
    Ok(())
}

/// Row lengths: for one thread and for many, multiples of a vector and not, fitting into registers and not.
const COLUMNS: [usize; 7] = [1, 7, 64, 768, 1000, 5000, 9000];

/// Rows normalised to variance one, and to mean zero unless only squares count, in f64.
fn standard(x: &Tensor, centred: bool, eps: f32) -> Result<Tensor> {
    let x = if centred { x.broadcast_sub(&x.mean_keepdim(1)?)? } else { x.clone() };
    x.broadcast_div(&(x.sqr()?.mean_keepdim(1)? + f64::from(eps))?.sqrt()?)
}

#[test]
fn norms_agree_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    const EPS: f32 = 1e-5;
    for (columns, (dtype, tolerance)) in COLUMNS.into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        // Also with a mean much larger than the deviations from it.
        for mean in [0., 100.] {
            let (x, x_gpu) = both(&(waves(0, (6, columns))? + mean)?, dtype, &device)?;
            let (residual, residual_gpu) = both(&waves(1, (6, columns))?, dtype, &device)?;
            let vectors = (2..5).map(|i| both(&waves(i, columns)?, dtype, &device)).collect::<Result<Vec<_>>>()?;
            let [(bias, bias_gpu), (scale, scale_gpu), (shift, shift_gpu)] = &vectors[..] else { unreachable!() };
            let end = |x: Tensor| x.broadcast_mul(scale)?.broadcast_add(shift);
            let expected = [
                end(standard(&x, true, EPS)?)?,
                end(standard(&(&x + &residual)?, true, EPS)?)?,
                end(standard(&x.broadcast_add(bias)?.add(&residual)?, true, EPS)?)?,
                standard(&x, false, EPS)?.broadcast_mul(scale)?,
            ];
            let mut first: Option<[Tensor; 4]> = None;
            for (layout, x) in layouts(&x_gpu)?.into_iter().take(4) {
                let add = |bias| ops::add_layer_norm(&x, bias, &residual_gpu, scale_gpu, shift_gpu, EPS);
                let got = [
                    ops::layer_norm(&x, scale_gpu, shift_gpu, EPS)?,
                    add(None)?,
                    add(Some(bias_gpu))?,
                    ops::rms_norm(&x, scale_gpu, EPS)?,
                ];
                for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let of = format!("normalisation {i} of {columns} columns in {dtype:?}, mean {mean}, {layout}");
                    assert_near(got, expected, tolerance, &of);
                    if let Some(first) = &first {
                        assert!(same_bits(got, &first[i])?, "{of}: bits depend on where elements lie");
                    }
                }
                first.get_or_insert(got);
            }
        }
    }
    Ok(())
}

/// Rows handled by parts of warps, by warps and by blocks, with a partially filled last one.
const MANY_ROWS: [(usize, usize); 7] =
    [(70_001, 8), (70_001, 136), (1030, 24), (1030, 500), (1030, 1000), (1030, 1030), (3, 40)];

#[test]
fn norms_of_many_rows_and_of_no_rows() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    const EPS: f32 = 1e-5;
    for ((rows, columns), (dtype, tolerance)) in MANY_ROWS.into_iter().flat_map(|s| DTYPES.map(|d| (s, d))) {
        let of = format!("{rows} rows of {columns} columns in {dtype:?}");
        let (x, x_gpu) = both(&waves(0, (rows, columns))?, dtype, &device)?;
        let (residual, residual_gpu) = both(&waves(3, (rows, columns))?, dtype, &device)?;
        let vectors = (1..3).map(|i| both(&waves(i, columns)?, dtype, &device)).collect::<Result<Vec<_>>>()?;
        let [(scale, scale_gpu), (shift, shift_gpu)] = &vectors[..] else { unreachable!() };
        let end = |x: Tensor| x.broadcast_mul(scale)?.broadcast_add(shift);
        let got = ops::layer_norm(&x_gpu, scale_gpu, shift_gpu, EPS)?;
        assert_near(&got, &end(standard(&x, true, EPS)?)?, tolerance, &of);
        let got = ops::add_layer_norm(&x_gpu, None, &residual_gpu, scale_gpu, shift_gpu, EPS)?;
        assert_near(&got, &end(standard(&(x + residual)?, true, EPS)?)?, tolerance, format!("sums, {of}"));

        let none = x_gpu.narrow(0, 0, 0)?;
        assert_eq!(ops::add_layer_norm(&none, None, &none, scale_gpu, shift_gpu, EPS)?.dims(), [0, columns]);
        assert!(ops::add_layer_norm(&x_gpu, None, &x_gpu.narrow(0, 0, 1)?, scale_gpu, shift_gpu, EPS).is_err());
        assert!(ops::rms_norm(&x_gpu, &scale_gpu.narrow(0, 1, 3)?, EPS).is_err());
    }
    Ok(())
}

#[test]
fn add_rms_norm_returns_the_sum_and_its_norm() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    const EPS: f32 = 1e-5;
    for (columns, (dtype, tolerance)) in COLUMNS.into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        let (x, x_gpu) = both(&waves(0, (6, columns))?, dtype, &device)?;
        let (residual, residual_gpu) = both(&waves(1, (6, columns))?, dtype, &device)?;
        let (scale, scale_gpu) = both(&waves(2, columns)?, dtype, &device)?;
        // The norm is computed from the rounded sum.
        let sum = (x + residual)?.to_dtype(dtype)?.to_dtype(DType::F64)?;
        let expected = [sum.clone(), standard(&sum, false, EPS)?.broadcast_mul(&scale)?];
        let mut first: Option<[Tensor; 2]> = None;
        for (layout, x) in layouts(&x_gpu)?.into_iter().take(4) {
            let (sum, normed) = ops::add_rms_norm(&x, &residual_gpu, &scale_gpu, EPS)?;
            let got = [sum, normed];
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let of = format!("part {i} of {columns} columns in {dtype:?}, {layout}");
                assert_near(got, expected, tolerance, &of);
                let first = first.as_ref().map_or(got, |first| &first[i]);
                assert!(same_bits(got, first)?, "{of}: bits depend on where elements lie");
            }
            first.get_or_insert(got);
        }
        let none = x_gpu.narrow(0, 0, 0)?;
        assert_eq!(ops::add_rms_norm(&none, &none, &scale_gpu, EPS)?.1.dims(), [0, columns]);
        assert!(ops::add_rms_norm(&x_gpu, &scale_gpu, &residual_gpu, EPS).is_err());
    }
    Ok(())
}

#[test]
fn softmax_with_every_bias() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (columns, (dtype, tolerance)) in COLUMNS.into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        // Large and small values, like attention scores.
        let (x, x_gpu) = both(&(waves(0, (2, 3, 5, columns))? * 20.)?, dtype, &device)?;
        let masked = |bias: Tensor| bias.gt(0.5)?.to_dtype(DType::F32)? * -1e4;
        let shapes =
            [vec![columns], vec![1, 1, 1, columns], vec![2, 1, 5, columns], vec![2, 3, 5, columns], vec![3, 1, 1]];
        let biases = shapes.iter().map(|shape| both(&masked(waves(1, shape.as_slice())?)?, dtype, &device));
        let biases = biases.collect::<Result<Vec<_>>>()?;
        for (bias, bias_gpu) in [(None, None)].into_iter().chain(biases.iter().map(|(b, g)| (Some(b), Some(g)))) {
            let of = format!("{columns} columns in {dtype:?}, bias {:?}", bias.map(Tensor::dims));
            let expected = ops::add_softmax(&x, bias)?;
            let got = ops::add_softmax(&x_gpu, bias_gpu)?;
            assert_near(&got, &expected, tolerance, &of);
            let turned = x_gpu.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
            assert!(same_bits(&ops::add_softmax(&turned, bias_gpu)?, &got)?, "{of}: bits depend on where elements lie");
        }
        // An operand with few dimensions, an empty operand, and a bias that does not match.
        let (flat, flat_gpu) = both(&waves(3, columns)?, dtype, &device)?;
        assert_near(&ops::softmax_last_dim(&flat_gpu)?, &ops::softmax_last_dim(&flat)?, tolerance, "one row");
        assert_eq!(ops::softmax_last_dim(&x_gpu.narrow(1, 0, 0)?)?.dims(), [2, 0, 5, columns]);
        assert!(ops::add_softmax(&x_gpu, Some(&x_gpu.narrow(1, 0, 2)?)).is_err());
    }
    Ok(())
}

#[test]
fn softmax_of_many_rows() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for ((rows, columns), (dtype, tolerance)) in MANY_ROWS.into_iter().flat_map(|s| DTYPES.map(|d| (s, d))) {
        let (x, x_gpu) = both(&(waves(0, (rows, columns))? * 20.)?, dtype, &device)?;
        let (bias, bias_gpu) = both(&waves(1, (rows, columns))?, dtype, &device)?;
        let expected = ops::add_softmax(&x, Some(&bias))?;
        let of = format!("{rows} rows of {columns} columns in {dtype:?}");
        assert_near(&ops::add_softmax(&x_gpu, Some(&bias_gpu))?, &expected, tolerance, &of);
        let got = ops::softmax_last_dim(&x_gpu)?;
        for (layout, x) in layouts(&x_gpu)?.into_iter().take(4) {
            let other = ops::softmax_last_dim(&x)?;
            assert!(same_bits(&other, &got)?, "{of}, {layout}: bits depend on where elements lie");
        }
    }
    Ok(())
}

#[test]
fn softmax_of_extreme_scores() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let inf = f32::INFINITY;
    let rows = [[0., -inf, 0., -inf], [88., 89., 1e30, -1e30], [f32::NAN, 0., 0., 0.], [-inf, -inf, -inf, -inf]];
    let got = ops::softmax_last_dim(&Tensor::new(&rows, &device)?)?.to_vec2::<f32>()?;
    assert_eq!(got[..2], [[0.5, 0., 0.5, 0.], [0., 0., 1., 0.]]);
    assert!(got[2..].iter().flatten().all(|p| p.is_nan()), "{got:?}");
    Ok(())
}

#[test]
fn matmuls_with_bias_and_activation() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (columns, (dtype, tolerance)) in COLUMNS.into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        // Values large enough to reach every part of an activation.
        let (x, x_gpu) = both(&(waves(0, (6, 4))? * 6.)?, dtype, &device)?;
        let (weight, weight_gpu) = both(&waves(1, (columns, 4))?, dtype, &device)?;
        let (bias, bias_gpu) = both(&waves(2, columns)?, dtype, &device)?;
        for (activation, bias) in ACTIVATIONS.into_iter().flat_map(|a| [(a, None), (a, Some((&bias, &bias_gpu)))]) {
            let expected = ops::linear_act(&x, &weight, bias.map(|b| b.0), activation)?;
            let bias = bias.map(|b| b.1);
            let of = format!("{activation:?} of {columns} columns in {dtype:?}, bias {}", bias.is_some());
            for (layout, x) in layouts(&x_gpu)?.into_iter().take(4) {
                let got = ops::linear_act(&x, &weight_gpu, bias, activation)?;
                assert_near(&got, &expected, 2. * tolerance, format!("{of}, {layout}"));
                let batch = x.unsqueeze(0)?.broadcast_as((3, 6, 4))?;
                let got = ops::linear_act(&batch, &weight_gpu, bias, activation)?;
                let expected = expected.unsqueeze(0)?.repeat((3, 1, 1))?;
                assert_near(&got, &expected, 2. * tolerance, format!("{of}, a batch, {layout}"));
            }
            if let Some(bias) = bias {
                let moved = Tensor::cat(&[&bias.narrow(0, 0, 1)?, bias], 0)?.narrow(0, 1, columns)?;
                let got = ops::linear_act(&x_gpu, &weight_gpu, Some(&moved), activation)?;
                assert_near(&got, &expected, 2. * tolerance, format!("{of}, moved"));
            }
        }
    }
    Ok(())
}

/// Large enough that several libraries have kernels for it.
const MATMULS: [(usize, usize, usize); 6] =
    [(1, 400, 400), (1, 400, 1), (8, 416, 400), (128, 512, 2048), (300, 768, 1000), (128, 3072, 768)];

#[test]
fn autotuned_matmuls_are_right_and_deterministic() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let other_stream = Device::new_cuda_with_stream(0)?;
    for ((rows, inner, columns), (dtype, tolerance)) in MATMULS.into_iter().flat_map(|s| DTYPES.map(|d| (s, d))) {
        let (x, x_gpu) = both(&waves(0, (rows, inner))?, dtype, &device)?;
        let (weight, weight_gpu) = both(&waves(1, (columns, inner))?, dtype, &device)?;
        let (bias, bias_gpu) = both(&waves(2, columns)?, dtype, &device)?;
        for (activation, bias) in ACTIVATIONS.into_iter().flat_map(|a| [(a, None), (a, Some((&bias, &bias_gpu)))]) {
            let of = format!("{rows} x {inner} x {columns}, {activation:?}, bias {}, in {dtype:?}", bias.is_some());
            let expected = ops::linear_act(&x, &weight, bias.map(|b| b.0), activation)?;
            let run = |x: &Tensor, device: &Device| {
                let bias = bias.map(|b| b.1.to_device(device)).transpose()?;
                ops::linear_act(x, &weight_gpu.to_device(device)?, bias.as_ref(), activation)
            };
            let got = run(&x_gpu, &device)?;
            assert_near(&got, &expected, tolerance, &of);
            assert!(same_bits(&run(&x_gpu, &device)?, &got)?, "{of}: bits change from call to call");
            let there = run(&x_gpu.to_device(CPU)?.to_device(&other_stream)?, &other_stream)?;
            assert!(same_bits(&there.to_device(CPU)?, &got.to_device(CPU)?)?, "{of}: bits depend on the stream");
            // One row of NaN.
            let row = Tensor::full(f32::NAN, (1, inner), &device)?.to_dtype(dtype)?;
            let got = run(&x_gpu.slice_assign(&[0..1, 0..inner], &row)?, &device)?;
            let got = got.to_dtype(DType::F64)?.to_vec2::<f64>()?;
            let is_nan = |row: &[f64]| row.iter().all(|y| y.is_nan());
            assert!(
                is_nan(&got[0]) && got[1..].iter().flatten().all(|y| y.is_finite()),
                "{of}: NaN does not reach its row only"
            );
        }
    }
    Ok(())
}

#[test]
fn f32_matmuls_do_not_use_tf32() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (rows, inner, columns) in MATMULS {
        // More bits than TF32 has, and sums that f32 represents exactly.
        let x = Tensor::full(4097f32, (rows, inner), &device)?;
        let got = ops::linear(&x, &Tensor::ones((columns, inner), DType::F32, &device)?, None)?;
        let expected = Tensor::full(4097f32 * inner as f32, (rows, columns), CPU)?;
        assert_eq!(got.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(())
}

#[test]
fn f32_matmuls_are_as_accurate_as_candles() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (rows, inner, columns) in [(128, 768, 3072), (512, 768, 3072), (1000, 3072, 768)] {
        let numbers = opara_weights::seeded(7, DType::F32, CPU);
        let (x, weight) = (numbers.get((rows, inner), "x")?, numbers.get((columns, inner), "weight")?);
        // Errors of both signs, which cancel, and errors of one sign, which add up.
        for (x, weight) in [(x.clone(), weight.clone()), (x.abs()?, weight.abs()?)] {
            let ((x, x_gpu), (weight, weight_gpu)) =
                (both(&x, DType::F32, &device)?, both(&weight, DType::F32, &device)?);
            let expected = x.matmul(&weight.t()?)?;
            let error = |got: Tensor| -> Result<f64> {
                (got.to_device(CPU)?.to_dtype(DType::F64)? - &expected)?.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()
            };
            let candles = error(x_gpu.matmul(&weight_gpu.t()?)?)?;
            let ours = error(ops::linear(&x_gpu, &weight_gpu, None)?)?;
            assert!(ours <= 1.25 * candles, "{rows} x {inner} x {columns}: off by {ours:.1e}, candle's {candles:.1e}");
        }
    }
    Ok(())
}

#[test]
fn splitting_heads_agrees_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let cases = [(1, 2, 1, 1), (2, 5, 3, 7), (2, 9, 12, 64), (1, 128, 12, 64), (3, 4, 2, 1000), (1, 3, 1, 20000)];
    for ((batch, seq, heads, dim), (dtype, tolerance)) in cases.into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        let hidden = heads * dim;
        let (x, x_gpu) = both(&waves(0, (batch * seq + 1, hidden))?, dtype, &device)?;
        let (bias, bias_gpu) = both(&waves(1, hidden)?, dtype, &device)?;
        let [x, x_gpu] = [x, x_gpu].map(|x| x.narrow(0, 1, batch * seq));
        let (x, x_gpu) = (x?, x_gpu?);
        for (bias, scale) in
            [(None, 1.), (Some((&bias, &bias_gpu)), 1.), (Some((&bias, &bias_gpu)), 0.125), (None, 0.3)]
        {
            let split = |x: &Tensor, bias| ops::split_heads(&x.reshape((batch, seq, hidden))?, bias, heads, scale);
            let expected = split(&x, bias.map(|b| b.0))?;
            for (layout, x) in layouts(&x_gpu)?.into_iter().take(4) {
                let of = format!("{batch} x {seq} x {heads} x {dim} in {dtype:?}, {layout}, times {scale}");
                let got = split(&x, bias.map(|b| b.1))?;
                assert!(got.is_contiguous(), "{of}");
                assert_near(&got, &expected, tolerance, &of);
                let merged = expected.transpose(1, 2)?.reshape((batch, seq, hidden))?;
                let strided = got.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
                for got in [got, strided] {
                    assert_near(&ops::merge_heads(&got)?, &merged, tolerance, &of);
                }
            }
            // A slice of wider rows, and rows with varying distances.
            let rows = x_gpu.reshape((batch, seq, hidden))?;
            let wide = Tensor::cat(&[&rows, &rows, &rows], 2)?.narrow(2, hidden, hidden)?;
            let uneven = Tensor::cat(&[&rows, &rows], 1)?.narrow(1, 0, seq)?;
            for part in [wide, uneven] {
                let of = format!("{batch} x {seq} x {heads} x {dim} in {dtype:?}, strides {:?}", part.stride());
                let got = ops::split_heads(&part, bias.map(|b| b.1), heads, scale)?;
                assert!(same_bits(&got, &split(&x_gpu, bias.map(|b| b.1))?)?, "{of}");
            }
        }
        assert!(ops::split_heads(&x_gpu.reshape((batch, seq, hidden))?, None, hidden + 1, 1.).is_err());
        let none = x_gpu.narrow(0, 0, 0)?.reshape((0, seq, hidden))?;
        let none = ops::split_heads(&none, None, heads, 1.)?;
        assert_eq!(none.dims(), [0, heads, seq, dim]);
        assert_eq!(ops::merge_heads(&none)?.dims(), [0, seq, hidden]);
    }
    Ok(())
}

#[test]
fn embeddings_agree_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (hidden, (dtype, _)) in [1, 7, 24, 64].into_iter().flat_map(|hidden| DTYPES.map(|d| (hidden, d))) {
        let (table, table_gpu) = both(&waves(0, (11, hidden))?, dtype, &device)?;
        let ids = Tensor::new(&[[3u8, 0, 10], [10, 7, 3]], CPU)?;
        let expected = ops::embedding(&table, &ids)?;
        // Tables that are not aligned to 16 bytes, and strided ids.
        let moved = Tensor::cat(&[&table_gpu.narrow(0, 0, 1)?, &table_gpu], 0)?.narrow(0, 1, 11)?;
        for id in [DType::U8, DType::U32, DType::I64] {
            let ids = ids.to_dtype(id)?.to_device(&device)?;
            let turned = ids.t()?.contiguous()?.t()?;
            for (table, ids) in [(&table_gpu, &ids), (&moved, &ids), (&table_gpu, &turned)] {
                let of = format!("{hidden} of {dtype:?} by {id:?}");
                assert_near(&ops::embedding(table, ids)?, &expected, 0., of);
            }
        }
        // The largest id gives a row of zeros, on the CPU as on the GPU.
        for ids in
            [Tensor::new(&[1, u8::MAX], CPU)?, Tensor::new(&[1, u32::MAX], CPU)?, Tensor::new(&[1, i64::MAX], CPU)?]
        {
            let expected = ops::embedding(&table, &ids)?;
            let got = ops::embedding(&table_gpu, &ids.to_device(&device)?)?;
            assert_near(&got, &expected, 0., format!("a row of zeros by {:?}", ids.dtype()));
        }
    }
    let (table, ids) = (waves(0, (4, 8))?.to_device(&device)?, Tensor::new(&[1f32], &device)?);
    assert!(ops::embedding(&table, &ids).is_err(), "ids that are not integers");
    assert!(ops::embedding(&table, &Tensor::new(&[1u32], CPU)?).is_err(), "ids on another device");
    Ok(())
}

/// A Transformer layer of fused operators, with branches that may run in parallel. A launch must wait for another
/// exactly if it reads the other's results.
#[test]
fn fused_operators_are_replayed() {
    let Some(device) = gpu() else { return };
    for (dtype, columns) in DTYPES.into_iter().flat_map(|(dtype, _)| [(dtype, 64), (dtype, 60), (dtype, 14)]) {
        let weights = |i: usize| waves(i, (columns, columns))?.to_dtype(dtype)?.to_device(&device);
        let vectors = |i: usize| waves(i, columns)?.to_dtype(dtype)?.to_device(&device);
        let weights = (10..14).map(weights).collect::<Result<Vec<_>>>().expect("weights");
        let vectors = (20..24).map(vectors).collect::<Result<Vec<_>>>().expect("vectors");
        let keys_values = Tensor::cat(&weights[1..3], 0).expect("weights");
        let function = move |t: &[Tensor]| {
            let x = &t[0];
            let [bias, scale, shift, other] = &vectors[..] else { unreachable!() };
            // One matmul by itself, and two that are combined into one.
            let query = ops::linear(x, &weights[0], None)?;
            let both = ops::linear(x, &keys_values, None)?;
            let [key, value] = [0, columns].map(|start| ops::narrow(&both, 2, start, columns));
            let heads = [(query, 0.5), (key?, 1.), (value?, 1.)];
            let heads = heads.map(|(x, factor)| ops::split_heads(&x, Some(bias), 2, factor));
            let heads = heads.into_iter().collect::<Result<Vec<_>>>()?;
            let scores = ops::matmul(&heads[0], &heads[1].transpose(2, 3)?)?;
            let mask = heads[0].narrow(3, 0, 1)?.broadcast_as(scores.shape())?.contiguous()?;
            let scores = ops::add_softmax(&scores, Some(&mask))?;
            let context = ops::merge_heads(&ops::matmul(&scores, &heads[2])?)?;
            let sum =
                ops::add_layer_norm(&ops::linear(&context, &weights[3], None)?, Some(other), x, scale, shift, 1e-5)?;
            let branches = ACTIVATIONS.map(|activation| {
                let y = ops::linear_act(&sum, &weights[0], Some(bias), activation)?;
                ops::add_layer_norm(&ops::rms_norm(&y, scale, 1e-5)?, None, &sum, scale, other, 1e-5)
            });
            let halves = ops::layer_norm(&sum.narrow(1, 3, 4)?, scale, shift, 1e-5)?;
            let (stream, normed) = ops::add_rms_norm(&sum, x, scale, 1e-5)?;
            branches.into_iter().chain([halves, sum, stream, normed].map(Ok)).collect()
        };
        replayed(Mode::Graph, function, |i| {
            Ok(vec![waves(i, (2, 9, columns))?.to_dtype(dtype)?.to_device(&device)?])
        });
    }
}
