//! Whether a text's bits depend on the texts beside it.

use anyhow::Result;
use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Tensor};
use opara_candle::ops::{self, Activation, QuantizedWeight};
use opara_models::decoder::{Config, Decoder};

use crate::common::{gpu, same_bits, waves};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Rows `from` to `from + count` of a matrix.
fn rows(of: &Tensor, from: usize, count: usize) -> candle::Result<Tensor> {
    of.narrow(0, from, count)?.force_contiguous()
}

/// Also of lengths that 16 bytes do not divide, and of which eight rows do not fit into shared memory.
#[test]
fn rows_of_products_are_the_same_from_two_to_eight() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (columns, inner) in [(33, 100), (50, 36), (7, 64), (1, 3), (96, 896), (301, 77), (40, 4872), (64, 14_336)] {
        for dtype in DTYPES {
            let on_gpu = |seed, shape: (usize, usize)| waves(seed, shape)?.to_dtype(dtype)?.to_device(&device);
            let (x, weight) = (on_gpu(1, (8, inner))?, (on_gpu(2, (2 * columns, inner))? * 0.1)?);
            let (scale, bias) = (on_gpu(3, (1, inner))?.flatten_all()?, on_gpu(4, (1, 2 * columns))?.flatten_all()?);
            let residual = on_gpu(5, (8, 2 * columns))?;
            let products = |from, count| -> candle::Result<[Tensor; 3]> {
                let (x, residual) = (rows(&x, from, count)?, rows(&residual, from, count)?);
                Ok([
                    ops::norm_linear(&x, Some((&scale, 1e-5)), &weight, Some(&bias), Some(&residual))?,
                    ops::norm_linear_act(&x, None, &weight, None, Activation::Silu)?,
                    ops::norm_gated(&x, Some((&scale, 1e-5)), &weight, None, Activation::Gelu)?,
                ])
            };
            let all = products(0, 8)?;
            for (count, from) in (2..8).flat_map(|count| [(count, 0), (count, 8 - count)]) {
                for (at, (got, all)) in products(from, count)?.iter().zip(&all).enumerate() {
                    let expected = rows(all, from, count)?;
                    assert!(
                        same_bits(got, &expected)?,
                        "product {at}: {count} rows of {inner} by {columns}, {dtype:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Texts up to which products of 16 bits have one family of kernels: on Hopper.
const MANY: usize = 256;

#[cfg(not(feature = "cuda"))]
pub(super) fn is_hopper(_: &Device) -> Result<bool> {
    Ok(false)
}

#[cfg(feature = "cuda")]
pub(super) fn is_hopper(device: &Device) -> Result<bool> {
    let stream = device.as_cuda_device()?.cuda_stream();
    Ok(stream.context().compute_capability()? == (9, 0))
}

/// Numbers of rows at which kernels change, and others.
const COUNTS: [usize; 14] = [2, 3, 8, 9, 16, 17, 33, 63, 64, 65, 127, 128, 129, 255];

/// Results of 16 bits differ from those in f32 by roundings.
fn assert_alike(got: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    let difference = (got.to_dtype(DType::F32)? - expected)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let far = (difference / expected.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt();
    let most = if got.dtype() == DType::F16 { 1e-3 } else { 5e-3 };
    assert!(far < most, "{what}: off by {far:.1e}");
    Ok(())
}

/// Sizes of published models among them: Qwen2.5-0.5B's, Llama-3.2-1B's, Llama-3.1-8B's, and the longest rows of Qwen2.5-7B.
#[test]
fn rows_of_products_of_16_bits_are_the_same_from_two_to_256() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    if !is_hopper(&device)? {
        return Ok(());
    }
    device.set_seed(7)?;
    let sizes =
        [(33, 104), (301, 904), (1152, 896), (3072, 2048), (2048, 8192), (6144, 4096), (4096, 14_336), (64, 18_944)];
    for ((columns, inner), dtype) in sizes.iter().flat_map(|&sizes| [(sizes, DType::F16), (sizes, DType::BF16)]) {
        let on_gpu = |by: f64, shape: (usize, usize)| (Tensor::randn(0f32, 1., shape, &device)? * by)?.to_dtype(dtype);
        let (x, weight) = (on_gpu(1., (MANY, inner))?, on_gpu((inner as f64).powf(-0.5), (2 * columns, inner))?);
        let (scale, bias) = (on_gpu(1., (1, inner))?.flatten_all()?, on_gpu(1., (1, 2 * columns))?.flatten_all()?);
        let residual = on_gpu(1., (MANY, 2 * columns))?;
        let products = |from, count| -> candle::Result<[Tensor; 3]> {
            // A row each of as many texts.
            let [x, residual] = [&x, &residual].map(|of| rows(of, from, count)?.unsqueeze(1));
            let (x, residual) = (x?, residual?);
            let products = [
                ops::norm_linear(&x, Some((&scale, 1e-5)), &weight, Some(&bias), Some(&residual))?,
                ops::norm_linear_act(&x, None, &weight, Some(&bias), Activation::Silu)?,
                ops::norm_gated(&x, None, &weight, Some(&bias), Activation::Silu)?,
            ];
            let [linear, act, gated] = products.map(|of| of.squeeze(1));
            Ok([linear?, act?, gated?])
        };
        let all = products(0, MANY)?;
        let of = format!("{inner} by {columns}, {dtype:?}");
        let [x32, weight32, bias32] = [&x, &weight, &bias].map(|tensor| tensor.to_dtype(DType::F32));
        let plain = x32?.matmul(&weight32?.t()?)?.broadcast_add(&bias32?)?;
        assert_alike(&all[1], &plain.silu()?, &format!("activation, {of}"))?;
        let gated = (plain.narrow(1, 0, columns)?.silu()? * plain.narrow(1, columns, columns)?)?;
        assert_alike(&all[2], &gated, &format!("gated, {of}"))?;
        let composed =
            ops::rms_norm(&x, &scale, 1e-5)?.to_dtype(DType::F32)?.matmul(&weight.to_dtype(DType::F32)?.t()?)?;
        let composed = (composed.broadcast_add(&bias.to_dtype(DType::F32)?)? + residual.to_dtype(DType::F32)?)?;
        assert_alike(&all[0], &composed, &format!("residual, {of}"))?;
        for (count, from) in COUNTS.into_iter().flat_map(|count| [(count, 0), (count, MANY - count)]) {
            for (at, (got, all)) in products(from, count)?.iter().zip(&all).enumerate() {
                let is_same = same_bits(got, &rows(all, from, count)?)?;
                assert!(is_same, "product {at}: {count} rows of {inner} by {columns}, {dtype:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_of_quantised_products_are_the_same_from_two_to_eight() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (columns, inner) in [(33, 32), (50, 96), (96, 992), (64, 14_336), (64, 32_000)] {
        for (to, dtype) in [GgmlDType::Q4_0, GgmlDType::Q8_0].iter().flat_map(|&to| DTYPES.map(|dtype| (to, dtype))) {
            let weight = QTensor::quantize(&waves(2, (columns, inner))?, to)?;
            let weight = QuantizedWeight::new(&[&weight], &device)?;
            let x = waves(1, (8, inner))?.to_dtype(dtype)?.to_device(&device)?;
            let all = ops::quantized_linear(&x, None, &weight, None, None)?;
            for (count, from) in (2..8).flat_map(|count| [(count, 0), (count, 8 - count)]) {
                let got = ops::quantized_linear(&rows(&x, from, count)?, None, &weight, None, None)?;
                let of = format!("{count} rows of {inner} by {columns}, {to:?}, {dtype:?}");
                assert!(same_bits(&got, &rows(&all, from, count)?)?, "{of}");
            }
        }
    }
    Ok(())
}

/// Of all formats that codes and their groups have.
#[test]
fn rows_of_quantised_products_of_16_bits_are_the_same_from_nine_to_256() -> Result<()> {
    use GgmlDType::{Q2K, Q4K, Q4_0, Q5_1, Q6K, Q8_0};
    let Some(device) = gpu() else { return Ok(()) };
    if !is_hopper(&device)? {
        return Ok(());
    }
    device.set_seed(7)?;
    // `None` is floats of 8 bits.
    let small = [Some(Q4_0), Some(Q4K), Some(Q5_1), Some(Q8_0), Some(Q6K), Some(Q2K), None].into_iter();
    let small = small.flat_map(|to| [(33, 256), (301, 768), (1536, 2048)].map(|sizes| (to, sizes)));
    let published = [Some(Q4_0), Some(Q8_0), None].into_iter();
    let published = published.flat_map(|to| [(1152, 896), (6144, 4096), (512, 14_336)].map(|sizes| (to, sizes)));
    for (to, (columns, inner)) in small.chain(published) {
        let (shape, size) = ((2 * columns, inner), (inner as f64).powf(-0.5));
        let weight = match to {
            Some(to) => {
                let weight = (Tensor::randn(0f32, 1., shape, &device)? * size)?.to_device(&Device::Cpu)?;
                QuantizedWeight::new(&[&QTensor::quantize(&weight, to)?], &device)?
            }
            None => {
                // All but those that are no numbers.
                let number = |at: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8;
                let bytes = (0..shape.0 * shape.1).map(number).map(|byte| if byte & 127 == 127 { 0 } else { byte });
                let bytes = Tensor::from_iter(bytes, &Device::Cpu)?.reshape(shape)?;
                let scales = (Tensor::rand(0.5f32, 2., (shape.0, inner / 128), &Device::Cpu)? * (size / 128.))?;
                QuantizedWeight::of_floats(&[(&bytes, &scales)], &device)?
            }
        };
        // Few rows of codes have kernels that multiply these.
        let counts = COUNTS.into_iter().filter(|&count| to.is_none() || count > 8);
        for dtype in [DType::F16, DType::BF16] {
            let of = format!("{inner} by {columns}, {to:?}, {dtype:?}");
            let on_gpu = |shape: (usize, usize)| Tensor::randn(0f32, 1., shape, &device)?.to_dtype(dtype);
            let (x, residual) = (on_gpu((MANY, inner))?, on_gpu((MANY, 2 * columns))?);
            let (scale, bias) = (on_gpu((1, inner))?.flatten_all()?, on_gpu((1, 2 * columns))?.flatten_all()?);
            let products = |from, count| -> candle::Result<[Tensor; 3]> {
                let (x, residual) = (rows(&x, from, count)?, rows(&residual, from, count)?);
                Ok([
                    ops::quantized_linear(&x, Some((&scale, 1e-5)), &weight, None, Some(&residual))?,
                    ops::quantized_linear(&x, None, &weight, Some(&bias), None)?,
                    ops::quantized_gated(&x, None, &weight, Some(&bias), Activation::Silu)?,
                ])
            };
            let all = products(0, MANY)?;
            let elements = weight.dequantize(dtype)?.to_dtype(DType::F32)?.t()?;
            let plain = x.to_dtype(DType::F32)?.matmul(&elements)?.broadcast_add(&bias.to_dtype(DType::F32)?)?;
            assert_alike(&all[1], &plain, &format!("bias, {of}"))?;
            let gated = (plain.narrow(1, 0, columns)?.silu()? * plain.narrow(1, columns, columns)?)?;
            assert_alike(&all[2], &gated, &format!("gated, {of}"))?;
            let composed = ops::rms_norm(&x, &scale, 1e-5)?.to_dtype(DType::F32)?.matmul(&elements)?;
            let composed = (composed + residual.to_dtype(DType::F32)?)?;
            assert_alike(&all[0], &composed, &format!("norm and residual, {of}"))?;
            // One row of floats has kernels of its own.
            for (one, all) in products(3, 1)?.iter().zip(&all).filter(|_| to.is_none()) {
                assert_alike(one, &rows(all, 3, 1)?.to_dtype(DType::F32)?, &format!("one row, {of}"))?;
            }
            for (count, from) in counts.clone().flat_map(|count| [(count, 0), (count, MANY - count)]) {
                for (at, (got, all)) in products(from, count)?.iter().zip(&all).enumerate() {
                    assert!(same_bits(got, &rows(all, from, count)?)?, "product {at}: {count} rows, {of}");
                }
            }
        }
    }
    Ok(())
}

/// Models of sizes that kernels take, and of others.
fn configs() -> Vec<Config> {
    let sizes = [(128, 64, 192), (100, 20, 36), (72, 36, 52), (96, 48, 100)];
    let config = |(hidden, head_dim, intermediate): (usize, usize, usize)| {
        Config::from_json(&serde_json::json!({
            "model_type": "qwen2", "vocab_size": 300, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim,
            "max_position_embeddings": 256,
        }))
        .expect("a configuration")
    };
    sizes.into_iter().map(config).collect()
}

/// Hidden states of some steps of texts that are written side by side, then their logits.
fn written(model: &Decoder, texts: &[u32]) -> Result<Vec<Tensor>> {
    let cache = model.cache(texts.len())?;
    let mut states = Vec::new();
    for at in 0..5 {
        let tokens = Tensor::from_iter(texts.iter().map(|text| (text * 31 + at as u32 * 7) % 300), model.device())?;
        states.push(model.forward(&tokens.unsqueeze(1)?, &cache.at(at)?)?.squeeze(1)?);
    }
    states.push(model.logits(&states[4].unsqueeze(1)?)?.squeeze(1)?);
    Ok(states)
}

fn assert_same(got: &[Tensor], at: usize, expected: &[Tensor], of: usize, said: &str) -> Result<()> {
    for (step, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(same_bits(&rows(got, at, 1)?, &rows(expected, of, 1)?)?, "step {step} of text {of}: {said}");
    }
    Ok(())
}

#[test]
fn texts_are_the_same_beside_others() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let load = |config: &Config, dtype, to: Option<GgmlDType>| -> Result<Decoder> {
        let vb = opara_weights::seeded(5, dtype, &device);
        Ok(match to {
            Some(to) => Decoder::load_quantized(vb, config, to, 64, 64)?,
            None => Decoder::load(vb, config, 64)?,
        })
    };
    let kinds =
        DTYPES.iter().flat_map(|&dtype| [None, Some(GgmlDType::Q8_0), Some(GgmlDType::Q4_0)].map(|to| (dtype, to)));
    for (config, (dtype, to)) in configs().iter().flat_map(|config| kinds.clone().map(move |kind| (config, kind))) {
        let model = load(config, dtype, to)?;
        let sizes = format!("hidden {}, heads of {}, {dtype:?}, {to:?}", config.hidden, config.head_dim);
        // Up to eight, however many there are.
        let texts: Vec<u32> = (0..8).collect();
        let all = written(&model, &texts)?;
        for count in [2, 3, 5, 8] {
            let got = written(&model, &texts[8 - count..])?;
            for at in 0..count {
                assert_same(&got, at, &all, 8 - count + at, &format!("beside {count}, {sizes}"))?;
            }
        }
        // More: as long as there are as many, whatever the others are.
        for count in [9, 16, 17, 64] {
            let texts: Vec<u32> = (0..count as u32).collect();
            let all = written(&model, &texts)?;
            for own in [0, count / 2, count - 1] {
                let others: Vec<u32> =
                    texts.iter().map(|&text| if text as usize == own { text } else { text + 100 }).collect();
                assert_same(&written(&model, &others)?, own, &all, own, &format!("of {count}, {sizes}"))?;
            }
        }
    }
    Ok(())
}

/// Of 16 bits, with sizes that vectors of 16 bytes divide, as published models have.
#[test]
fn texts_of_16_bits_are_the_same_beside_up_to_256() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    if !is_hopper(&device)? {
        return Ok(());
    }
    for (hidden, head_dim, intermediate) in [(128, 64, 192), (96, 48, 104), (896, 64, 4864)] {
        let config = Config::from_json(&serde_json::json!({
            "model_type": "qwen2", "vocab_size": 300, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim,
            "max_position_embeddings": 256,
        }))?;
        for dtype in [DType::F16, DType::BF16] {
            let model = Decoder::load(opara_weights::seeded(5, dtype, &device), &config, 64)?;
            let texts: Vec<u32> = (0..MANY as u32).collect();
            let all = written(&model, &texts)?;
            for count in [2, 3, 8, 9, 16, 17, 33, 63, 65, 129] {
                let got = written(&model, &texts[MANY - count..])?;
                for at in [0, count / 2, count - 1] {
                    let said = format!("beside {count}, hidden {hidden}, {dtype:?}");
                    assert_same(&got, at, &all, MANY - count + at, &said)?;
                }
            }
        }
    }
    Ok(())
}
