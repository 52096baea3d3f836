//! Quantised weights on a GPU, against the same arithmetic on the CPU.

use std::sync::Arc;

use anyhow::Result;
use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Shape, Tensor, D};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use opara_candle::ops::{self, Activation, QuantizedWeight, Sampling};
use opara_models::decoder::Decoder;

use super::generation::{configs, engines, requests};
use super::{assert_near, both};
use crate::common::{gpu, same_bits, waves, CPU};

const TYPES: [GgmlDType; 8] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

/// Dtypes with the maximum relative error of the products of codes, which have sums in f32 and the result's rounding, and with the unit
/// roundoff of that type.
const DTYPES: [(DType, f64, f64); 3] =
    [(DType::F32, 1e-5, 1. / 16_777_216.), (DType::F16, 1e-3, 1. / 2048.), (DType::BF16, 8e-3, 1. / 256.)];

/// Each group of 32 neighbours rounded to 8 bits, as the kernels do.
fn in_eight_bits(x: &Tensor) -> Result<Tensor> {
    let mut values = x.flatten_all()?.to_vec1::<f32>()?;
    for group in values.chunks_exact_mut(32) {
        let largest = group.iter().fold(0f32, |most, x| most.max(x.abs()));
        let (scale, inverse) = (largest / 127., if largest > 1e-35 { 127. / largest } else { 0. });
        group.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even() * scale);
    }
    Ok(Tensor::from_vec(values, x.dims(), CPU)?)
}

/// The root-mean-square norm, whose factor the kernels multiply with at the end.
fn product(x: &Tensor, norm: Option<(&Tensor, f64)>, weight: &Tensor) -> Result<Tensor> {
    let Some((scale, eps)) = norm else { return Ok(in_eight_bits(x)?.matmul(&weight.t()?)?) };
    let factor = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    Ok(in_eight_bits(&x.broadcast_mul(scale)?)?.matmul(&weight.t()?)?.broadcast_mul(&factor)?)
}

/// The product with a weight that is rounded already, and by how much one of a library may differ from it, relative to the largest
/// result. The result is rounded to a type of this unit roundoff; so is a part of each sum where the sum is split, here into four;
/// and each term may lose what three products of TF32 lose, and the sum in f32. Terms cancel here, so that a sum's parts are larger
/// than the sum.
fn product_of_library(x: &Tensor, weight: &Tensor, unit: f64) -> Result<(Tensor, f64)> {
    let weight = weight.t()?;
    let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>().map(f64::from);
    let (expected, quarter) = (x.matmul(&weight)?, x.dim(1)? / 4);
    let mut rounded = largest(&expected)?;
    for part in 0..4 {
        let (x, weight) = (x.narrow(1, part * quarter, quarter)?, weight.narrow(0, part * quarter, quarter)?);
        rounded += largest(&x.contiguous()?.matmul(&weight)?)?;
    }
    let terms = largest(&x.abs()?.matmul(&weight.abs()?)?)?;
    let off = unit * rounded + terms / 1_048_576.;
    let relative = off / largest(&expected)?;
    Ok((expected, relative))
}

#[test]
fn products_with_few_rows_are_those_of_codes_of_eight_bits() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Fewer rows than a warp takes, a row that is no whole chunk, several blocks in turns, and long rows.
    for (columns, inner) in [(7, 256), (896, 1024), (3001, 768), (40, 4864)] {
        let weight = (waves(3, (2 * columns, inner))? * (inner as f64).powf(-0.5))?;
        for to in TYPES {
            let whole = QTensor::quantize(&weight, to)?;
            let half = QTensor::quantize(&weight.narrow(0, 0, columns)?.contiguous()?, to)?;
            let [expanded, of_half] = [&whole, &half].map(|weight| QuantizedWeight::new(&[weight], CPU));
            let (expanded, of_half) = (expanded?.dequantize(DType::F32)?, of_half?.dequantize(DType::F32)?);
            let [whole, half] = [&whole, &half].map(|weight| QuantizedWeight::new(&[weight], &device));
            let (whole, half) = (whole?, half?);
            assert!(same_bits(&whole.dequantize(DType::F32)?, &expanded)?, "elements of {to:?}");
            for (dtype, tolerance, unit) in DTYPES {
                let on = |i, shape: (usize, usize)| both(&waves(i, shape)?, dtype, &device);
                let flat = |(a, b): (Tensor, Tensor)| Ok::<_, candle::Error>((a.flatten_all()?, b.flatten_all()?));
                let ((scale, of_scale), (bias, of_bias)) = (flat(on(5, (1, inner))?)?, flat(on(6, (1, 2 * columns))?)?);
                let mut beside = None;
                for rows in [1, 2, 3, 5, 8] {
                    let of = format!("{rows} rows of {inner} by {columns}, {to:?}, {dtype:?}");
                    let ((x, of_x), (residual, of_residual)) = (on(1, (rows, inner))?, on(2, (rows, columns))?);
                    let expected = (product(&x, Some((&scale, 1e-5)), &of_half)? + &residual)?;
                    let got = ops::quantized_linear(&of_x, Some((&of_scale, 1e-5)), &half, None, Some(&of_residual))?;
                    assert_near(&got, &expected, tolerance, format!("norm, {of}, sum"));
                    // One row alone has another kernel.
                    if rows > 1 {
                        let first = got.narrow(0, 0, 1)?.contiguous()?;
                        let beside = beside.get_or_insert_with(|| first.clone());
                        assert!(same_bits(&first, beside)?, "{of}: the first row depends on the others");
                    }
                    let sums = product(&x, None, &expanded)?.broadcast_add(&bias)?;
                    let got = ops::quantized_linear(&of_x, None, &whole, Some(&of_bias), None)?;
                    assert_near(&got, &sums, tolerance, format!("{of}, bias"));
                    let expected = ops::gated(&sums, Activation::Silu)?;
                    let got = ops::quantized_gated(&of_x, None, &whole, Some(&of_bias), Activation::Silu)?;
                    assert_near(&got, &expected, tolerance, format!("gated, {of}"));
                }
                let ((x, of_x), of) = (on(1, (20, inner))?, format!("20 rows by {columns}, {to:?}, {dtype:?}"));
                let rounded = of_half.to_dtype(dtype)?;
                let (expected, tolerance) = product_of_library(&x, &rounded.to_dtype(DType::F32)?, unit)?;
                let got = ops::quantized_linear(&of_x, None, &half, None, None)?;
                assert_near(&got, &expected, tolerance, of);
                let ids = Tensor::new(&[[2u32, 0, ops::NO_TOKEN], [6, ops::NO_TOKEN, 1]], CPU)?;
                let expected = rounded.index_select(&ids.flatten_all()?, 0)?.reshape((2, 3, inner))?;
                let got = ops::quantized_embedding(&half, &ids.to_device(&device)?, dtype)?;
                assert!(same_bits(&got.to_device(CPU)?, &expected)?, "rows of {to:?} in {dtype:?}");
            }
        }
    }
    Ok(())
}

/// Rows whose scales cannot be copied together are not on tensor cores; long ones leave little room beside them.
#[test]
fn odd_and_long_rows_are_products_of_codes_too() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (columns, inner, to) in [
        (40, 992, GgmlDType::Q4_0),
        (40, 992, GgmlDType::Q8_0),
        // Rows of scales that begin at multiples of 8 bytes, and of 16.
        (40, 896, GgmlDType::Q8_0),
        (40, 896, GgmlDType::Q5_1),
        (24, 14_336, GgmlDType::Q4_0),
        (24, 14_336, GgmlDType::Q8_0),
        (24, 14_336, GgmlDType::Q6K),
        (24, 17_920, GgmlDType::Q6K),
    ] {
        let weight = QTensor::quantize(&(waves(3, (columns, inner))? * (inner as f64).powf(-0.5))?, to)?;
        few_rows_agree(&[&weight], format!("{columns} by {inner}, {to:?}"), &device)?;
    }
    Ok(())
}

/// As the products for queries, keys and values are in some files.
#[test]
fn weights_of_several_types_are_one_product() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight =
        |seed, inner: usize, to| QTensor::quantize(&(waves(seed, (24, inner))? * (inner as f64).powf(-0.5))?, to);
    for (inner, types) in [
        (768, [GgmlDType::Q4K, GgmlDType::Q6K]),
        (1024, [GgmlDType::Q8_0, GgmlDType::Q6K]),
        (896, [GgmlDType::Q5_1, GgmlDType::Q8_0]),
    ] {
        let [first, second] = [weight(3, inner, types[0])?, weight(4, inner, types[1])?];
        few_rows_agree(&[&first, &second], format!("{types:?} of {inner}"), &device)?;
    }
    Ok(())
}

/// Products with one to eight rows are near those of the elements, and from two rows on do not depend on the others.
fn few_rows_agree(weights: &[&QTensor], of: String, device: &Device) -> Result<()> {
    let expanded = QuantizedWeight::new(weights, CPU)?.dequantize(DType::F32)?;
    let weight = QuantizedWeight::new(weights, device)?;
    assert!(same_bits(&weight.dequantize(DType::F32)?, &expanded)?, "elements of {of}");
    let all = waves(1, (8, weight.dims().1))?;
    let of_all = ops::quantized_linear(&all.to_device(device)?, None, &weight, None, None)?.to_device(CPU)?;
    let expected = product(&all, None, &expanded)?;
    assert_near(&of_all, &expected, 3e-5, of.clone());
    for rows in 1..8 {
        let last = |t: &Tensor| t.narrow(0, 8 - rows, rows)?.contiguous();
        let got = ops::quantized_linear(&last(&all)?.to_device(device)?, None, &weight, None, None)?.to_device(CPU)?;
        match rows {
            // One row alone has another kernel.
            1 => assert_near(&got, &last(&expected)?, 3e-5, format!("one row, {of}")),
            _ => assert!(same_bits(&got, &last(&of_all)?)?, "{rows} rows, {of}, beside others and alone"),
        }
    }
    Ok(())
}

#[test]
fn rows_with_an_infinity_are_not_numbers_and_others_do_not_notice() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = QTensor::quantize(&waves(3, (64, 256))?, GgmlDType::Q4_0)?;
    let weight = QuantizedWeight::new(&[&weight], &device)?;
    let x = waves(1, (3, 256))?;
    let expected = ops::quantized_linear(&x.to_device(&device)?, None, &weight, None, None)?.to_device(CPU)?;
    for strange in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut values = x.flatten_all()?.to_vec1::<f32>()?;
        values[256 + 77] = strange;
        let x = Tensor::from_vec(values, (3, 256), &device)?;
        let got = ops::quantized_linear(&x, None, &weight, None, None)?.to_device(CPU)?;
        assert!(got.get(1)?.to_vec1::<f32>()?.iter().all(|x| x.is_nan()), "{strange}");
        for row in [0, 2] {
            assert!(same_bits(&got.get(row)?, &expected.get(row)?)?, "row {row} beside {strange}");
        }
    }
    Ok(())
}

/// Weights whose matrices are what is left of them in a quantised type.
struct Rounded {
    of: VarBuilder<'static>,
    to: GgmlDType,
}

impl SimpleBackend for Rounded {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, _: &Device) -> candle::Result<Tensor> {
        let whole = self.of.get(shape, name)?;
        match whole.dims() {
            &[_, columns] if columns.is_multiple_of(self.to.block_size()) => {
                QTensor::quantize(&whole, self.to)?.dequantize(CPU)
            }
            _ => Ok(whole),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        self.of.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.of.contains_tensor(name)
    }
}

/// The largest difference of two tensors, relative to the largest value of the second.
fn distance(x: &Tensor, from: &Tensor) -> Result<f64> {
    let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    Ok(f64::from(largest(&(x.to_device(CPU)? - from)?)? / largest(from)?))
}

/// Both devices round activations to 8 bits, the GPU for up to eight rows, and are as far as that makes them from the model that
/// multiplies with the same weights in f32.
#[test]
fn logits_on_a_gpu_are_as_near_to_those_of_expanded_weights_as_the_cpus() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for to in [GgmlDType::Q4_1, GgmlDType::Q8_0] {
        for (name, config) in configs() {
            let seeded = |device| opara_weights::seeded(5, DType::F32, device);
            let [here, there] =
                [CPU, &device].map(|device| Decoder::load_quantized(seeded(device), &config, to, 2, 240));
            let rounded = Box::new(Rounded { of: seeded(CPU), to });
            let whole = Decoder::load(VarBuilder::from_backend(rounded, DType::F32, CPU.clone()), &config, 240)?;
            let (here, there) = (here?, there?);
            let (mut on_cpu, mut on_gpu, mut of_whole) = (here.cache(1)?, there.cache(1)?, whole.cache(1)?);
            let mut at = 0;
            for tokens in [33, 1, 7] {
                let ids = Tensor::from_iter((0..tokens).map(|i| ((at + i) * 37 % config.vocab) as u32), CPU)?;
                let ids = ids.reshape((1, tokens))?;
                let expected = whole.logits(&whole.forward(&ids, &of_whole)?)?;
                let from_cpu = distance(&here.logits(&here.forward(&ids, &on_cpu)?)?, &expected)?;
                let got = there.logits(&there.forward(&ids.to_device(&device)?, &on_gpu)?)?;
                let from_gpu = distance(&got, &expected)?;
                // Sums in another order. Many rows are multiplied in f32; of few, each device's codes are others where their
                // operands are.
                let most = if tokens > 8 { 1e-4 } else { 1e-4 + 2. * from_cpu };
                let of = format!("{name} in {to:?}, {tokens} tokens from {at} on");
                assert!(from_gpu <= most, "{of}: off by {from_gpu:.2e}, and the CPU by {from_cpu:.2e}");
                at += tokens;
                (on_cpu, on_gpu, of_whole) = (on_cpu.at(at)?, on_gpu.at(at)?, of_whole.at(at)?);
            }
        }
    }
    Ok(())
}

#[test]
fn executors_write_what_eager_execution_writes_with_quantised_weights() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for to in [GgmlDType::Q4_0, GgmlDType::Q8_0] {
        for (name, config) in configs() {
            let vb = opara_weights::seeded(5, DType::F16, &device);
            let model = Arc::new(Decoder::load_quantized(vb, &config, to, 2, 240)?);
            let [mut fast, mut eager] = engines(&model, 2)?;
            let prompts: Vec<Vec<u32>> = [150, 7].map(|n| (0..n).map(|i| (i * 41 + n) % 96).collect()).to_vec();
            let requests = requests(&prompts, &[Sampling::default(); 2], 40);
            let expected = eager.generate(&requests, |_, _| ())?;
            assert_eq!(fast.generate(&requests, |_, _| ())?, expected, "{name} in {to:?}");
            assert_eq!(fast.eager(), [""; 0], "{name}");
        }
    }
    Ok(())
}
