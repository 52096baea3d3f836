//! GGUF files of the smallest decoders.

use std::io::Cursor;

use candle::quantized::gguf_file::{write, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{Device, Result, Tensor};

use crate::parts::join;

pub fn files() -> Vec<Vec<u8>> {
    let of = [
        ("llama", GgmlDType::F32, 8),
        ("llama", GgmlDType::Q4_0, 32),
        ("llama", GgmlDType::Q8_0, 32),
        ("qwen2", GgmlDType::F16, 8),
        ("qwen3", GgmlDType::Q5_1, 32),
        ("gemma3", GgmlDType::BF16, 8),
        ("phi3", GgmlDType::F32, 8),
    ];
    let mut files: Vec<_> =
        of.iter().map(|(name, dtype, hidden)| file(name, *dtype, *hidden, None).expect("a sound model")).collect();
    let [first, second] = [0, 1].map(|at| file("llama", GgmlDType::F32, 8, Some(at)).expect("a sound model"));
    files.push(join(&[(b'a', &first), (b'b', &second)]));
    files
}

/// A model of one layer, or the first or second half of one.
fn file(name: &str, dtype: GgmlDType, hidden: usize, part: Option<usize>) -> Result<Vec<u8>> {
    let (vocab, inner) = (7, hidden);
    let tensor = |shape: &[usize]| -> Result<QTensor> {
        let dtype = if shape.len() == 2 { dtype } else { GgmlDType::F32 };
        let values = Tensor::arange(0f32, shape.iter().product::<usize>() as f32, &Device::Cpu)?.reshape(shape)?;
        QTensor::quantize(&(values / 100.)?, dtype)
    };
    let mut shapes: Vec<(&str, Vec<usize>)> = vec![
        ("token_embd.weight", vec![vocab, hidden]),
        ("output.weight", vec![vocab, hidden]),
        ("output_norm.weight", vec![hidden]),
        ("blk.0.attn_norm.weight", vec![hidden]),
        ("blk.0.ffn_norm.weight", vec![hidden]),
        ("blk.0.attn_output.weight", vec![hidden, hidden]),
        ("blk.0.ffn_down.weight", vec![hidden, inner]),
    ];
    let matrix = || vec![hidden, hidden];
    match name {
        "phi3" => shapes.extend([
            ("blk.0.attn_qkv.weight", vec![3 * hidden, hidden]),
            ("blk.0.ffn_up.weight", vec![2 * inner, hidden]),
        ]),
        _ => shapes.extend([
            ("blk.0.attn_q.weight", matrix()),
            ("blk.0.attn_k.weight", matrix()),
            ("blk.0.attn_v.weight", matrix()),
            ("blk.0.ffn_gate.weight", matrix()),
            ("blk.0.ffn_up.weight", matrix()),
        ]),
    }
    let heads = 2;
    if matches!(name, "qwen3" | "gemma3") {
        shapes.extend([
            ("blk.0.attn_q_norm.weight", vec![hidden / heads]),
            ("blk.0.attn_k_norm.weight", vec![hidden / heads]),
        ]);
    }
    if name == "qwen2" {
        shapes.extend(["blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"].map(|name| (name, vec![hidden])));
    }
    if name == "gemma3" {
        shapes.extend(
            ["blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"].map(|name| (name, vec![hidden])),
        );
    }
    let half = shapes.len() / 2;
    let shapes = match part {
        None => &shapes[..],
        Some(0) => &shapes[..half],
        Some(_) => &shapes[half..],
    };
    let tensors = shapes.iter().map(|(name, shape)| Ok((*name, tensor(shape)?))).collect::<Result<Vec<_>>>()?;
    let metadata = metadata(name, hidden, heads, part);
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    write(&mut bytes, &metadata, &tensors)?;
    Ok(bytes.into_inner())
}

fn metadata(name: &str, hidden: usize, heads: usize, part: Option<usize>) -> Vec<(String, Value)> {
    let number = |n: usize| Value::U32(n as u32);
    let texts = |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::String(text.to_string())).collect());
    let mut all: Vec<(String, Value)> = Vec::new();
    if let Some(part) = part {
        all.extend([("split.count".into(), Value::U16(2)), ("split.no".into(), Value::U16(part as u16))]);
    }
    if part == Some(1) {
        return all;
    }
    all.push(("general.architecture".into(), Value::String(name.into())));
    let own = [
        ("embedding_length", number(hidden)),
        ("feed_forward_length", number(hidden)),
        ("block_count", number(1)),
        ("attention.head_count", number(heads)),
        ("attention.head_count_kv", number(heads)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("context_length", number(16)),
        ("rope.freq_base", Value::F32(1e4)),
    ];
    all.extend(own.map(|(key, value)| (format!("{name}.{key}"), value)));
    if name == "gemma3" {
        all.push(("gemma3.attention.sliding_window".into(), number(4)));
    }
    let template = "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}";
    let tokenizer = [
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("llama-bpe".into())),
        ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "ab", "Ġ", "Ġab", "<end>"])),
        ("tokenizer.ggml.merges", texts(&["a b", "Ġ ab"])),
        ("tokenizer.ggml.token_type", Value::Array([1, 1, 1, 1, 1, 4, 3].map(Value::I32).to_vec())),
        ("tokenizer.ggml.bos_token_id", number(6)),
        ("tokenizer.ggml.eos_token_id", number(6)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.chat_template", Value::String(template.into())),
    ];
    all.extend(tokenizer.map(|(key, value)| (key.to_owned(), value)));
    all
}
