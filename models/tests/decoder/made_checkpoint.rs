//! Checkpoints of a small model.

use std::collections::HashMap;
use std::path::Path;

use candle::{DType, Tensor};
use opara_models::decoder::{Config, Decoder, Result};
use opara_weights::Checkpoint;
use serde_json::json;

use super::CPU;

/// A checkpoint of a tiny Llama with further tensors, without some, and with other fields.
pub fn checkpoint(folder: &Path, more: &[&str], without: &[&str], fields: serde_json::Value) -> Checkpoint {
    let mut json = json!({"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": false});
    json.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let seeded = opara_weights::seeded(11, DType::F32, CPU);
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let shapes = square.map(|name| (name, vec![32, 32])).into_iter().chain([
        ("mlp.gate_proj", vec![48, 32]),
        ("mlp.up_proj", vec![48, 32]),
        ("mlp.down_proj", vec![32, 48]),
        ("input_layernorm", vec![32]),
        ("post_attention_layernorm", vec![32]),
    ]);
    let shapes = shapes.map(|(name, shape)| (format!("model.layers.0.{name}.weight"), shape)).chain([
        ("model.embed_tokens.weight".to_owned(), vec![96, 32]),
        ("lm_head.weight".to_owned(), vec![96, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
    ]);
    for (name, shape) in shapes.filter(|(name, _)| !without.contains(&name.as_str())) {
        tensors.insert(name.clone(), seeded.get(shape, &name).expect("a seeded tensor"));
    }
    for name in more {
        tensors.insert((*name).to_owned(), Tensor::ones(4, DType::F32, CPU).expect("ones"));
    }
    candle::safetensors::save(&tensors, folder.join("model.safetensors")).expect("it is written");
    std::fs::write(folder.join("config.json"), json.to_string()).expect("it is written");
    Checkpoint::find(folder.to_str().expect("a path of UTF-8")).expect("it is there")
}

pub fn load_checkpoint(checkpoint: &Checkpoint) -> Result<Decoder> {
    Decoder::of_checkpoint(checkpoint, &Config::of_checkpoint(checkpoint)?, DType::F32, CPU, 1, 16)
}
