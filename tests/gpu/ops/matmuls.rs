//! Matmuls with a weight, with bias and activation.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops;

use super::{assert_near, both, ACTIVATIONS, COLUMNS, DTYPES};
use crate::common::{gpu, layouts, same_bits, waves, CPU};

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
        // More bits than TF32 has. The kernel of three TF32 products may round in the last place.
        let x = Tensor::full(4097f32, (rows, inner), &device)?;
        let got = ops::linear(&x, &Tensor::ones((columns, inner), DType::F32, &device)?, None)?;
        let got = (got.to_device(CPU)?.to_dtype(DType::F64)? / (4097 * inner) as f64)?;
        let error = (got - 1.)?.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(
            error <= f64::from(f32::EPSILON),
            "{rows} x {inner} x {columns}: off by {error:e}, TF32 by {:e}",
            1. / 4097.
        );
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
