//! The library's operators on a GPU, compared with the same operators on the CPU in f64. Tests skip without a GPU or
//! the feature `cuda`, and say so.

mod attention;
mod edges;
mod matmuls;
mod moe;
mod rows;
mod windows;

use crate::common::{furthest, gpu, layouts, replayed, same_bits, waves, CPU};
use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, Activation};
use opara_candle::Mode;

/// Dtypes with their allowed relative error.
const DTYPES: [(DType, f64); 4] = [(DType::F64, 1e-12), (DType::F32, 2e-3), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu];

/// Row lengths: for one thread and for many, multiples of a vector and not, fitting into registers and not.
const COLUMNS: [usize; 7] = [1, 7, 64, 768, 1000, 5000, 9000];

/// Asserts that `got` is close to `expected`, relative to the largest value of the latter.
#[track_caller]
fn assert_near(got: &Tensor, expected: &Tensor, tolerance: f64, of: impl std::fmt::Display) {
    let error = || -> Result<f64> {
        let scale = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?.max(1e-6);
        Ok(furthest(got, expected)? / scale)
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
