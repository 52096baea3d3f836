//! Norms and softmax of rows.

use candle::{DType, Result, Tensor};
use opara_candle::ops::{self, Activation};

use super::{assert_near, both, COLUMNS, DTYPES};
use crate::common::{gpu, layouts, same_bits, waves};

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

/// Channels, groups, and the pixels of an image: groups of one block and of several parts, vectors of all lengths, also of channels
/// of two groups, slices of several groups and of one, and a group that no block has room for.
const GROUPS: [(usize, usize, (usize, usize)); 16] = [
    (6, 3, (1, 1)),
    (6, 3, (5, 7)),
    (320, 32, (32, 32)),
    (320, 32, (16, 9)),
    (64, 32, (3, 64)),
    (128, 32, (80, 80)),
    (96, 4, (31, 33)),
    (8, 1, (256, 256)),
    (320, 32, (64, 64)),
    (128, 32, (120, 121)),
    (30, 3, (1, 1)),
    (30, 3, (37, 51)),
    (30, 3, (110, 101)),
    (64, 1, (65, 67)),
    (1016, 1016, (3, 5)),
    (2052, 1, (3, 7)),
];

#[test]
fn group_norms_agree_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    const EPS: f32 = 1e-5;
    for ((channels, groups, (h, w)), (dtype, tolerance)) in GROUPS.into_iter().flat_map(|g| DTYPES.map(|d| (g, d))) {
        for (mean, activation) in [(0., Activation::Silu), (100., Activation::None), (0., Activation::Relu)] {
            let of = format!("{groups} groups of {channels} x {h} x {w} in {dtype:?}, mean {mean}, {activation:?}");
            let (x, x_gpu) = both(&(waves(0, (3, channels, h, w))? + mean)?, dtype, &device)?;
            let vectors = (1..3).map(|i| both(&waves(i, channels)?, dtype, &device)).collect::<Result<Vec<_>>>()?;
            let [(scale, scale_gpu), (shift, shift_gpu)] = &vectors[..] else { unreachable!() };
            let expected = ops::group_norm(&x, scale, shift, groups, EPS, activation)?;
            let on_gpu = |x: &Tensor| ops::group_norm(x, scale_gpu, shift_gpu, groups, EPS, activation);
            let got = on_gpu(&x_gpu)?;
            assert_near(&got, &expected, tolerance, &of);
            let last = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
            assert_near(&on_gpu(&last)?, &expected, tolerance, format!("channels last, {of}"));
            let flat = on_gpu(&x_gpu.flatten_from(2)?)?;
            assert!(same_bits(&flat.reshape(got.shape())?, &got)?, "one dimension of pixels, {of}");
        }
    }
    Ok(())
}

#[test]
fn nan_in_a_group_stays_in_it() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // The second group begins in the middle of a vector, if channels come last.
    const CHANNELS: usize = 12;
    for (number, (dtype, _)) in [f64::NAN, f64::INFINITY].into_iter().flat_map(|x| DTYPES.map(|d| (x, d))) {
        for plane in [50, 20_000] {
            let x = waves(0, (1, CHANNELS, plane, 1))?.to_dtype(dtype)?.to_device(&device)?;
            let places = Tensor::arange(0f32, (CHANNELS * plane) as f32, &device)?;
            let one = places.eq((5 * plane + 7) as f64)?.reshape(x.shape())?;
            let x = one.where_cond(&(x.ones_like()? * number)?, &x)?;
            let (scale, shift) = (Tensor::ones(CHANNELS, dtype, &device)?, Tensor::zeros(CHANNELS, dtype, &device)?);
            let last = x.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
            for (layout, x) in [("channels first", x), ("channels last", last)] {
                let got = ops::group_norm(&x, &scale, &shift, 2, 1e-5, Activation::Silu)?.to_dtype(DType::F32)?;
                let is_nan = got.ne(&got)?.contiguous()?.flatten_all()?.to_vec1::<u8>()?;
                let expected = (0..CHANNELS * plane).map(|i| u8::from(i < CHANNELS / 2 * plane));
                assert!(is_nan.into_iter().eq(expected), "{number} among {plane} pixels in {dtype:?}, {layout}");
            }
        }
    }
    Ok(())
}

/// A part of a larger image's memory, which vectors may not begin at, gives the same.
#[test]
fn group_norms_of_images_that_are_not_aligned() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let sizes = (1, 48, 30, 31);
    for (dtype, tolerance) in DTYPES {
        let (x, x_gpu) = both(&waves(0, sizes)?, dtype, &device)?;
        let vectors = (1..3).map(|i| both(&waves(i, 48)?, dtype, &device)).collect::<Result<Vec<_>>>()?;
        let [(scale, scale_gpu), (shift, shift_gpu)] = &vectors[..] else { unreachable!() };
        let expected = ops::group_norm(&x, scale, shift, 4, 1e-5, Activation::Silu)?;
        let moved = |x: &Tensor| -> Result<Tensor> {
            let flat = x.flatten_all()?;
            Tensor::cat(&[&flat.narrow(0, 0, 1)?, &flat], 0)?.narrow(0, 1, flat.elem_count())?.reshape(x.shape())
        };
        let last = moved(&x_gpu.permute((0, 2, 3, 1))?.contiguous()?)?.permute((0, 3, 1, 2))?;
        for (layout, x) in [("channels first", moved(&x_gpu)?), ("channels last", last)] {
            let got = ops::group_norm(&x, scale_gpu, shift_gpu, 4, 1e-5, Activation::Silu)?;
            assert_near(&got, &expected, tolerance, format!("{dtype:?}, {layout}"));
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
