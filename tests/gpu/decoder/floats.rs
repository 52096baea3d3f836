//! Decoders of checkpoints whose matrices are floats of 8 bits, on a GPU.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle::{DType, Tensor, D};
use candle_nn::VarBuilder;
use opara_candle::ops::{QuantizedWeight, Sampling};
use opara_models::decoder::{Config, Decoder};
use opara_weights::{Checkpoint, Floats};

use super::generation::{engines, requests};
use super::rows::is_hopper;
use crate::common::{gpu, CPU};

const LAYERS: usize = 2;

fn config() -> serde_json::Value {
    serde_json::json!({
        "model_type": "llama", "vocab_size": 300, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "quantization_config": { "quant_method": "fp8" },
    })
}

/// Tensors of a file, whose matrices have a scale for each row, or the head for each block, and the same multiplied with their scales.
fn tensors() -> Result<[HashMap<String, Tensor>; 2]> {
    let (mut stored, mut expanded) = (HashMap::new(), HashMap::new());
    let seeded = opara_weights::seeded(5, DType::F32, CPU);
    let mut plain = vec![("model.embed_tokens".to_owned(), vec![300, 128]), ("model.norm".to_owned(), vec![128])];
    for layer in 0..LAYERS {
        let name = |of: &str| format!("model.layers.{layer}.{of}");
        plain.extend(["input_layernorm", "post_attention_layernorm"].map(|of| (name(of), vec![128])));
        for (of, rows, columns) in [
            ("self_attn.q_proj", 128, 128),
            ("self_attn.k_proj", 64, 128),
            ("self_attn.v_proj", 64, 128),
            ("self_attn.o_proj", 128, 128),
            ("mlp.gate_proj", 384, 128),
            ("mlp.up_proj", 384, 128),
            ("mlp.down_proj", 128, 384),
        ] {
            let weight = format!("{}.weight", name(of));
            let whole = seeded.get((rows, columns), &weight)?;
            let scale = (whole.abs()?.max_keepdim(D::Minus1)? / 448.)?;
            let floats = whole.broadcast_div(&scale)?.to_dtype(DType::F8E4M3)?;
            expanded.insert(weight.clone(), floats.to_dtype(DType::F32)?.broadcast_mul(&scale)?);
            stored.insert(format!("{weight}_scale"), scale);
            stored.insert(weight, floats);
        }
    }
    // Of 300 rows, in blocks of 128: the last one is smaller.
    let whole = seeded.get((300, 128), "lm_head.weight")?;
    let scales = Tensor::new(&[[0.001f32], [0.002], [0.004]], CPU)?;
    let of_rows = Tensor::cat(
        &[0, 1, 2]
            .map(|block| scales.narrow(0, block, 1).and_then(|of| of.repeat((128, 1))))
            .into_iter()
            .collect::<candle::Result<Vec<_>>>()?,
        0,
    )?;
    let of_rows = of_rows.narrow(0, 0, 300)?;
    let floats = whole.broadcast_div(&of_rows)?.to_dtype(DType::F8E4M3)?;
    expanded.insert("lm_head.weight".into(), floats.to_dtype(DType::F32)?.broadcast_mul(&of_rows)?);
    stored.insert("lm_head.weight_scale_inv".into(), scales);
    stored.insert("lm_head.weight".into(), floats);
    for (name, shape) in plain {
        let name = format!("{name}.weight");
        let tensor = seeded.get(shape, &name)?;
        stored.insert(name.clone(), tensor.clone());
        expanded.insert(name, tensor);
    }
    Ok([stored, expanded])
}

/// The root of the mean square of the difference, relative to that of `expected`.
fn distance(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let [got, expected] = [got, expected].map(|of| of.to_device(CPU)?.to_dtype(DType::F32));
    let (got, expected) = (got?, expected?);
    let squares = |of: Tensor| of.sqr()?.sum_all()?.to_scalar::<f32>();
    Ok((squares((got - &expected)?)? / squares(expected)?).sqrt())
}

#[test]
fn floats_of_eight_bits_stay_such_and_give_what_they_stand_for() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let [stored, expanded] = tensors()?;
    candle::safetensors::save(&stored, folder.path().join("model.safetensors"))?;
    fs::write(folder.path().join("config.json"), config().to_string())?;
    let checkpoint = Checkpoint::find(folder.path().to_str().context("a UTF-8 path")?)?.keep_floats(true);
    let config = Config::from_json(&config())?;
    let loaded = checkpoint.load(DType::BF16, CPU)?;
    let matrices = stored.iter().filter(|(_, tensor)| tensor.dtype() == DType::F8E4M3);
    for (name, _) in matrices {
        assert!(Floats::of(&loaded.vb, name).is_some(), "{name} is not read as it is");
    }
    assert_eq!(QuantizedWeight::multiplies_floats(DType::BF16, &device)?, is_hopper(&device)?);
    for dtype in [DType::F16, DType::BF16] {
        let whole = Decoder::load(VarBuilder::from_tensors(expanded.clone(), DType::F32, CPU), &config, 512)?;
        let on = |dtype| -> Result<Tensor> {
            let model = Decoder::of_checkpoint(&checkpoint, &config, dtype, &device, 1, 512)?;
            let mut cache = model.cache(1)?;
            let (mut at, mut all) = (0, Vec::new());
            // A prompt that is expanded, one that is not, and single tokens.
            for tokens in [300, 100, 1, 7, 1] {
                let ids = Tensor::from_iter((0..tokens).map(|i| ((at + i) * 37 % 300) as u32), &device)?;
                let logits = model.logits(&model.forward(&ids.reshape((1, tokens))?, &cache)?)?;
                all.push(logits.to_dtype(DType::F32)?);
                at += tokens;
                cache = cache.at(at)?;
            }
            Ok(Tensor::cat(&all, 1)?.to_device(CPU)?)
        };
        let ids = Tensor::from_iter((0..409).map(|i| (i * 37 % 300) as u32), CPU)?.reshape((1, 409))?;
        let expected = whole.logits(&whole.forward(&ids, &whole.cache(1)?)?)?;
        // Weights in f32 are expanded there.
        let in_f32 = distance(&on(DType::F32)?, &expected)?;
        assert!(in_f32 < 1e-4, "f32: off by {in_f32:.1e}");
        let (far, most) = (distance(&on(dtype)?, &expected)?, if dtype == DType::F16 { 4e-3 } else { 3e-2 });
        assert!(far < most, "{dtype:?}: off by {far:.1e}");
        let model = Arc::new(Decoder::of_checkpoint(&checkpoint, &config, dtype, &device, 2, 240)?);
        let [mut fast, mut eager] = engines(&model, 2)?;
        let prompts: Vec<Vec<u32>> = [150, 7].map(|n| (0..n).map(|i| (i * 41 + n) % 96).collect()).to_vec();
        let requests = requests(&prompts, &[Sampling::default(); 2], 40);
        assert_eq!(fast.generate(&requests, |_, _| ())?, eager.generate(&requests, |_, _| ())?, "{dtype:?}");
        assert_eq!(fast.eager(), [""; 0], "{dtype:?}");
    }
    Ok(())
}
