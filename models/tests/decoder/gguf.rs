//! Decoders from GGUF files.

use std::path::{Path, PathBuf};

use candle::quantized::gguf_file::{write, Value};
use candle::quantized::{GgmlDType, QTensor};
use opara_models::decoder::Text;

use super::*;

/// The order of a weight's rows in GGUF, for heads whose rotary pairs are neighbours.
fn paired(rows: usize, heads: usize) -> Vec<u32> {
    let dim = rows / heads;
    (0..rows).map(|row| (row / dim * dim + row % dim % 2 * (dim / 2) + row % dim / 2) as u32).collect()
}

/// The seeded model as llama.cpp's converter writes it, with matrices of a given type.
pub(crate) fn file(folder: &Path, config: &Config, matrices: GgmlDType) -> Result<PathBuf> {
    file_with(folder, config, matrices, &[])
}

/// The same with other metadata: a value, or that there is none.
pub(crate) fn file_with(
    folder: &Path,
    config: &Config,
    matrices: GgmlDType,
    others: &[(&str, Option<Value>)],
) -> Result<PathBuf> {
    let weights = opara_weights::seeded(11, DType::F32, CPU);
    let mut tensors = Vec::new();
    let mut add = |name: String, from: String, shape: &[usize], heads: Option<usize>| -> Result<()> {
        let mut tensor = weights.get(shape, &from)?;
        if let Some(heads) = heads {
            tensor = tensor.index_select(&Tensor::new(paired(shape[0], heads), CPU)?, 0)?;
        }
        let dtype = if shape.len() == 2 { matrices } else { GgmlDType::F32 };
        tensors.push((name, QTensor::quantize(&tensor, dtype)?));
        Ok(())
    };
    let Config { vocab, hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
    add("token_embd.weight".into(), "model.embed_tokens.weight".into(), &[vocab, hidden], None)?;
    add("output_norm.weight".into(), "model.norm.weight".into(), &[hidden], None)?;
    add("output.weight".into(), "lm_head.weight".into(), &[vocab, hidden], None)?;
    for at in 0..config.layers.len() {
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let parts: [(&str, &str, &[usize], Option<usize>); 9] = [
            ("attn_norm", "input_layernorm", &[hidden], None),
            ("ffn_norm", "post_attention_layernorm", &[hidden], None),
            ("attn_q", "self_attn.q_proj", &[q, hidden], Some(heads)),
            ("attn_k", "self_attn.k_proj", &[kv, hidden], Some(kv_heads)),
            ("attn_v", "self_attn.v_proj", &[kv, hidden], None),
            ("attn_output", "self_attn.o_proj", &[hidden, q], None),
            ("ffn_gate", "mlp.gate_proj", &[intermediate, hidden], None),
            ("ffn_up", "mlp.up_proj", &[intermediate, hidden], None),
            ("ffn_down", "mlp.down_proj", &[hidden, intermediate], None),
        ];
        for (name, from, shape, heads) in parts {
            add(format!("blk.{at}.{name}.weight"), format!("model.layers.{at}.{from}.weight"), shape, heads)?;
        }
    }
    let path = folder.join(format!("{matrices:?}.gguf"));
    save(&path, config, others, &tensors)?;
    Ok(path)
}

/// A file with a table of embeddings and no other tensor: for who reads its metadata alone.
pub(crate) fn bare(folder: &Path, others: &[(&str, Option<Value>)]) -> Result<PathBuf> {
    let mut config = config();
    config.layers.truncate(1);
    let table = Tensor::zeros((config.vocab, config.hidden), DType::F32, CPU)?;
    let path = folder.join("bare.gguf");
    save(&path, &config, others, &[("token_embd.weight".into(), QTensor::quantize(&table, GgmlDType::F32)?)])?;
    Ok(path)
}

/// Writes a file of this model's metadata.
fn save(path: &Path, config: &Config, others: &[(&str, Option<Value>)], tensors: &[(String, QTensor)]) -> Result<()> {
    let Config { hidden, intermediate, heads, kv_heads, .. } = *config;
    let number = |n: usize| Value::U32(n as u32);
    let texts = |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::String(text.to_string())).collect());
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(hidden)),
        ("llama.feed_forward_length", number(intermediate)),
        ("llama.block_count", number(config.layers.len())),
        ("llama.attention.head_count", number(heads)),
        ("llama.attention.head_count_kv", number(kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(config.eps as f32)),
        ("llama.context_length", number(config.max_positions)),
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("qwen2".into())),
        ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "ab", "Ġ", "Ġab", "<end>"])),
        ("tokenizer.ggml.merges", texts(&["a b", "Ġ ab"])),
        ("tokenizer.ggml.token_type", Value::Array([1, 1, 1, 1, 1, 1, 3].map(Value::I32).to_vec())),
        ("tokenizer.ggml.eos_token_id", number(6)),
    ];
    let metadata = metadata.iter().map(|(name, value)| (*name, value));
    let mut metadata: Vec<_> = metadata.filter(|(name, _)| others.iter().all(|(other, _)| other != name)).collect();
    metadata.extend(others.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))));
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    write(&mut std::fs::File::create(path)?, &metadata, &tensors)
}

pub(crate) fn config() -> Config {
    // Files have the epsilon in f32.
    Config { intermediate: 64, eps: f64::from(1e-6f32), ..Config::tiny() }
}

fn ids() -> Result<Tensor> {
    Tensor::from_iter((0..24u32).map(|i| i * 31 % 96), CPU)?.reshape((2, 12))
}

#[test]
fn a_gguf_file_gives_the_model_that_it_was_made_of() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let expected = logits(&load(&config(), 12), &ids()?, &[12])?;
    for (dtype, most) in [(GgmlDType::F32, 1e-4), (GgmlDType::F16, 0.02), (GgmlDType::Q8_0, 0.2), (GgmlDType::Q4_0, 3.)]
    {
        let path = file(folder.path(), &config(), dtype)?;
        let read = Config::of_gguf(&path).expect("a sound file");
        assert_eq!(Config { eos: Vec::new(), ..read.clone() }, config(), "{dtype:?}");
        assert_eq!(read.eos, [6]);
        let model = Decoder::load_gguf(&path, DType::F32, CPU, 2, 12).expect("a sound file");
        for parts in [vec![12], vec![5, 1, 1, 5]] {
            let difference = max_difference(&logits(&model, &ids()?, &parts)?, &expected)?;
            assert!(difference < most && (difference > 0. || dtype == GgmlDType::F32), "{dtype:?}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn its_own_tokenizer_is_used_unless_there_is_one_beside_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = file(folder.path(), &config(), GgmlDType::F32)?;
    let text = Text::of_gguf(&path).expect("a tokenizer");
    let tokens = text.encode("ab ab<end>c").expect("tokens");
    assert_eq!(tokens, [3, 5, 6, 2]);
    assert_eq!(text.decode(&tokens).expect("text"), "ab abc");
    std::fs::write(folder.path().join("tokenizer.json"), "{")?;
    assert!(told(Text::of_gguf(&path)).contains("tokenizer"));
    Ok(())
}

#[test]
fn a_damaged_file_is_named_with_what_is_wrong() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = file(folder.path(), &config(), GgmlDType::Q8_0)?;
    let whole = std::fs::read(&path)?;
    for kept in [0, 3, 100, 2000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..kept])?;
        let told = told(Decoder::load_gguf(&path, DType::F32, CPU, 1, 12));
        assert!(told.contains("not a sound GGUF file") && told.contains("Q8_0.gguf"), "{kept} bytes: {told}");
    }
    std::fs::write(&path, [&b"GGML"[..], &whole[4..]].concat())?;
    assert!(told(Config::of_gguf(&path)).contains("not a sound GGUF file"));
    assert!(told(Config::of_gguf(folder.path().join("none.gguf"))).contains("cannot read"));
    Ok(())
}
