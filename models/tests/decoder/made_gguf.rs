//! GGUF files of small models.

use candle::DType;
use opara_models::decoder::{Decoder, GgufFile, Result};

use super::CPU;

/// A value of a GGUF file.
#[derive(Clone)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Counts(Vec<u32>),
}

use Meta::{Bool, Counts, Text, F32, U32};

/// A tensor of a GGUF file: name, dimensions as in the file, type, bytes.
pub type Stored = (String, Vec<u64>, u32, Vec<u8>);

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

pub fn encode(metadata: &[(String, Meta)], tensors: &[Stored]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut bytes, key);
        match value {
            U32(number) => bytes.extend([4u32.to_le_bytes(), number.to_le_bytes()].concat()),
            F32(number) => bytes.extend([6u32.to_le_bytes(), number.to_le_bytes()].concat()),
            Bool(flag) => bytes.extend([&7u32.to_le_bytes()[..], &[u8::from(*flag)]].concat()),
            Text(value) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, value);
            }
            Counts(numbers) => {
                bytes.extend([9u32.to_le_bytes(), 4u32.to_le_bytes()].concat());
                bytes.extend((numbers.len() as u64).to_le_bytes());
                numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
    }
    let mut offset = 0;
    for (name, dims, kind, data) in tensors {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += data.len().next_multiple_of(32);
    }
    for (.., data) in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
    }
    bytes
}

pub fn floats(name: &str, dims: &[u64]) -> Stored {
    let count: u64 = dims.iter().product();
    let data = (0..count).flat_map(|at| (0.01 * (at % 17) as f32 - 0.05).to_le_bytes()).collect();
    (name.into(), dims.to_vec(), 0, data)
}

/// A small model: its metadata and its tensors.
pub fn model(architecture: &str) -> (Vec<(String, Meta)>, Vec<Stored>) {
    let key = |name: &str| format!("{architecture}.{name}");
    let name: &'static str = if architecture == "llama" { "llama" } else { "gemma3" };
    let metadata = vec![
        ("general.architecture".into(), Text(name)),
        (key("embedding_length"), U32(16)),
        (key("feed_forward_length"), U32(24)),
        (key("block_count"), U32(2)),
        (key("attention.head_count"), U32(4)),
        (key("attention.head_count_kv"), U32(2)),
        (key("attention.layer_norm_rms_epsilon"), F32(1e-5)),
        (key("context_length"), U32(64)),
    ];
    let mut tensors = vec![floats("token_embd.weight", &[16, 40]), floats("output_norm.weight", &[16])];
    for at in 0..2 {
        for (part, dims) in [
            ("attn_norm", &[16][..]),
            ("ffn_norm", &[16]),
            ("attn_q", &[16, 16]),
            ("attn_k", &[16, 8]),
            ("attn_v", &[16, 8]),
            ("attn_output", &[16, 16]),
            ("ffn_gate", &[16, 24]),
            ("ffn_up", &[16, 24]),
            ("ffn_down", &[24, 16]),
        ] {
            tensors.push(floats(&format!("blk.{at}.{part}.weight"), dims));
        }
        if architecture == "gemma3" {
            for part in ["attn_q_norm", "attn_k_norm"] {
                tensors.push(floats(&format!("blk.{at}.{part}.weight"), &[4]));
            }
            for part in ["post_attention_norm", "post_ffw_norm"] {
                tensors.push(floats(&format!("blk.{at}.{part}.weight"), &[16]));
            }
        }
    }
    (metadata, tensors)
}

pub fn open(file: impl Into<GgufFile>) -> Result<Decoder> {
    Decoder::load_gguf(file, DType::F32, CPU, 1, 16)
}
