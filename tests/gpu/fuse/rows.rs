//! Fused kernels on rows of every length.

use candle::{DType, Device, Result, Tensor, D};
use opara_candle::{Mode, OparaExecutor};

use super::{fused, random};
use crate::common::{answers_like, assert_same, gpu, replayed, waves};

/// T5's norm, as candle-transformers computes it.
fn norm(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let variance = (wide.sqr()?.sum_keepdim(D::Minus1)? * (1. / x.dim(D::Minus1)? as f64))?;
    let normed = wide.broadcast_div(&(variance + 1e-6)?.sqrt()?)?;
    normed.to_dtype(x.dtype())?.broadcast_mul(weight)
}

#[test]
fn a_norm_of_many_launches_becomes_one_launch() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let weight = waves(3, 64)?.to_device(&device)?.to_dtype(dtype)?;
        let function = move |t: &[Tensor]| {
            let sum = (&t[0] + &t[1])?;
            Ok(vec![norm(&sum, &weight)?, sum])
        };
        let input = |i, shape: (usize, usize, usize)| waves(i, shape)?.to_device(&device)?.to_dtype(dtype);
        let fast =
            replayed(Mode::Graph, function.clone(), |i| Ok(vec![input(i, (2, 7, 64))?, input(i + 9, (2, 7, 64))?]));
        let apart = OparaExecutor::builder().fuse(false);
        let example = [input(0, (2, 7, 64))?, input(9, (2, 7, 64))?];
        let apart = apart.build_fn(function.clone(), &example)?;
        fused(&apart, 0);
        fused(&fast, apart.report().counts().ops - apart.report().counts().folded - 1);
        answers_like(&fast, function, |i| Ok(vec![input(i, (1, 3, 64))?, input(i + 5, (1, 3, 64))?]));
    }
    Ok(())
}

/// Rows of lengths around the limits of candle's blocks and of fused kernels' blocks. There are so many short rows that
/// a block has several.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let few = [2, 33, 100, 128, 768, 1000, 1023, 1024, 1500, 3072, 4096].map(|columns| (5, columns));
    few.into_iter().chain([(1024, 2), (1028, 33), (1028, 100), (1024, 128), (1026, 128), (1024, 129)])
}

/// Rows of numbers; some rows contain an infinity, a NaN, or only zeros.
fn rows(i: usize, rows: usize, columns: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let mut numbers = waves(i, (rows, columns))?.flatten_all()?.to_vec1::<f32>()?;
    numbers[..columns].fill(0.);
    for (row, special) in [(1, f32::INFINITY), (2, f32::NEG_INFINITY), (3, f32::NAN)] {
        numbers[row * columns + (row * 31 + i) % columns] = special;
    }
    Tensor::from_vec(numbers, (rows, columns), device)?.to_dtype(dtype)
}

#[test]
fn softmax_and_norms_keep_their_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Rows = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let operators: [(&str, Rows); 3] = [
        ("layer norm", |x, weight, bias| candle_nn::ops::layer_norm(x, weight, bias, 1e-5)),
        ("rms norm", |x, weight, _| candle_nn::ops::rms_norm(x, weight, 1e-6)),
        ("softmax", |x, _, _| candle_nn::ops::softmax_last_dim(x)),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for ((count, columns), (name, operator)) in shapes().flat_map(|shape| operators.map(|of| (shape, of))) {
            let vector = |i| waves(i, columns)?.to_dtype(dtype)?.to_device(&device);
            let (weight, bias) = (vector(3)?, vector(4)?);
            let function = move |t: &[Tensor]| {
                let sum = (&t[0] + &t[1])?.broadcast_add(&bias)?;
                Ok(vec![operator(&sum, &weight, &bias)?.relu()?, operator(&t[0], &weight, &bias)?])
            };
            let input = |i| rows(i, count, columns, dtype, &device);
            let fast = replayed(Mode::Graph, function, |i| Ok(vec![input(i)?, input(i + 7)?]));
            assert_eq!(fast.report().counts().fused, 3, "{name} of {count} x {columns} {dtype:?}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn row_reductions_keep_their_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (count, columns) in shapes() {
            // candle sums short rows with another kernel.
            let sums = columns > 32;
            let function = move |t: &[Tensor]| {
                let x = (&t[0] * 0.5)?;
                let most = x.max_keepdim(1)?;
                let distance = x.broadcast_sub(&most)?.exp()?;
                let least = distance.min_keepdim(1)?.affine(2., 0.25)?;
                let sum = distance.sum_keepdim(1)?;
                Ok(vec![distance.broadcast_div(&sum)?, most, distance.broadcast_mul(&least)?])
            };
            let fast = replayed(Mode::Graph, function, |i| Ok(vec![rows(i, count, columns, dtype, &device)?]));
            // With the sum, everything is one launch; without it, the quotient is a launch of its own.
            let launches = if sums { 8 } else { 6 };
            assert_eq!(fast.report().counts().fused, launches, "{count} x {columns} {dtype:?}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn long_rows_and_mismatched_rows_are_not_fused() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let long = |t: &[Tensor]| Ok(vec![candle_nn::ops::softmax_last_dim(&t[0].relu()?)?.neg()?]);
    fused(&replayed(Mode::Graph, long, |i| Ok(vec![waves(i, (3, 5000))?.to_device(&device)?])), 0);
    // The sum is over columns, the quotient over rows.
    let columns = |t: &[Tensor]| {
        let x = t[0].sqr()?;
        Ok(vec![x.broadcast_div(&x.sum_keepdim(0)?)?.neg()?])
    };
    fused(&replayed(Mode::Graph, columns, |i| Ok(vec![waves(i, (48, 40))?.to_device(&device)?])), 1);
    // As many rows as columns: one scalar per row is used per column.
    let crossed = |t: &[Tensor]| {
        let x = t[0].sqr()?;
        Ok(vec![x.broadcast_div(&x.sum(1)?)?.neg()?])
    };
    fused(&replayed(Mode::Graph, crossed, |i| Ok(vec![waves(i, (40, 40))?.to_device(&device)?])), 2);
    Ok(())
}

#[test]
fn many_rows_and_a_single_one() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![candle_nn::ops::softmax(&t[0].affine(0.125, 0.)?, D::Minus1)?]);
    for shape in [(1, 768), (100_000, 64)] {
        let x = random(shape, &device)?;
        let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
        fused(&fast, 5);
        assert_same(&fast.call(std::slice::from_ref(&x))?, &function(&[x])?, format_args!("{shape:?}"));
    }
    Ok(())
}
