//! Quantised decoders of candle-transformers, from GGUF files of random weights that are written here.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use candle::quantized::gguf_file::{self, Content, Value};
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{DType, Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen3};
use opara_candle::OparaExecutor;
use opara_models::decoder::Decoder;
use opara_models::engine::{Engine, Options, Request};

use crate::models::{Decode, Model};

/// Sizes of a decoder.
struct Sizes {
    architecture: &'static str,
    vocab: usize,
    hidden: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    theta: f32,
    /// Do queries and keys have norms?
    has_norms: bool,
}

const QWEN3: Sizes = Sizes {
    architecture: "qwen3",
    vocab: 151_936,
    hidden: 1024,
    inner: 3072,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    theta: 1e6,
    has_norms: true,
};

const LLAMA: Sizes = Sizes {
    architecture: "llama",
    vocab: 128_256,
    hidden: 2048,
    inner: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    theta: 5e5,
    has_norms: false,
};

/// A file that goes with its owner.
pub struct Written(PathBuf);

impl Written {
    /// Copies it to `path`.
    pub fn keep(&self, path: &Path) -> Result<()> {
        std::fs::copy(&self.0, path).with_context(|| format!("a copy at {}", path.display()))?;
        Ok(())
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // A temporary file that is left is no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// All of them: files with the mixture of types that llama.cpp calls Q4_K_M, and one type throughout.
pub const MODELS: &[Model] = &[
    Model { name: "gguf-qwen3-0.6b-q4_k_m", make: |_, device| qwen3(None, device) },
    Model { name: "gguf-qwen3-0.6b-q8_0", make: |_, device| qwen3(Some(GgmlDType::Q8_0), device) },
    Model { name: "gguf-llama3.2-1b-q4_k_m", make: |_, device| llama(None, device) },
    Model { name: "gguf-llama3.2-1b-q8_0", make: |_, device| llama(Some(GgmlDType::Q8_0), device) },
];

fn qwen3(of: Option<GgmlDType>, device: &Device) -> Result<Decode> {
    let file = written(&QWEN3, of)?;
    let (content, mut reader) = content(&file)?;
    let model = quantized_qwen3::ModelWeights::from_gguf(content, &mut reader, device)?;
    Ok(Decode::of(model, quantized_qwen3::ModelWeights::forward)?.with_file(file))
}

fn llama(of: Option<GgmlDType>, device: &Device) -> Result<Decode> {
    let file = written(&LLAMA, of)?;
    let (content, mut reader) = content(&file)?;
    let model = quantized_llama::ModelWeights::from_gguf(content, &mut reader, device)?;
    Ok(Decode::of(model, quantized_llama::ModelWeights::forward)?.with_file(file))
}

fn content(Written(path): &Written) -> Result<(Content, BufReader<File>)> {
    let mut reader = BufReader::new(File::open(path)?);
    Ok((Content::read(&mut reader)?, reader))
}

/// Weights of random blocks: a pool for each type and size, from which all are cut.
#[derive(Default)]
struct Pools(HashMap<(GgmlDType, usize), Vec<u8>>);

impl Pools {
    /// A weight of `rows` rows with `columns` elements each.
    fn weight(&mut self, dtype: GgmlDType, rows: usize, columns: usize) -> Result<QTensor> {
        // A prime, so that one row's blocks are not those of another one for long.
        const BLOCKS: usize = 16_411;
        let pool = match self.0.entry((dtype, columns)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let numbers = Tensor::randn(0f32, 1., (BLOCKS, 256), &Device::Cpu)?;
                let numbers = (numbers * (columns as f64).powf(-0.5))?;
                new.insert(QTensor::quantize(&numbers, dtype)?.data()?.into_owned())
            }
        };
        let bytes = rows * columns / dtype.block_size() * dtype.type_size();
        let data: Vec<u8> = pool.iter().copied().cycle().take(bytes).collect();
        Ok(QTensor::new(QStorage::from_data(data.into(), &Device::Cpu, dtype)?, (rows, columns))?)
    }
}

/// Writes a file, all of one type if it is given.
fn written(sizes: &Sizes, of: Option<GgmlDType>) -> Result<Written> {
    let Sizes { architecture, vocab, hidden, inner, layers, heads, kv_heads, head_dim, .. } = *sizes;
    let mut pools = Pools::default();
    let of_type = |mixed: GgmlDType| of.unwrap_or(mixed);
    let mut tensors = vec![("token_embd.weight".to_string(), pools.weight(of_type(GgmlDType::Q6K), vocab, hidden)?)];
    let ones = |len: usize| QTensor::quantize(&Tensor::ones(len, DType::F32, &Device::Cpu)?, GgmlDType::F32);
    tensors.push(("output_norm.weight".into(), ones(hidden)?));
    for at in 0..layers {
        // A half of the layers has more bits for values and for what leads back to the hidden size.
        let more = if at < layers / 8 || at >= 7 * layers / 8 || at % 3 == 2 { GgmlDType::Q6K } else { GgmlDType::Q4K };
        let (all, keys) = (heads * head_dim, kv_heads * head_dim);
        for (name, dtype, rows, columns) in [
            ("attn_q", GgmlDType::Q4K, all, hidden),
            ("attn_k", GgmlDType::Q4K, keys, hidden),
            ("attn_v", more, keys, hidden),
            ("attn_output", GgmlDType::Q4K, hidden, all),
            ("ffn_gate", GgmlDType::Q4K, inner, hidden),
            ("ffn_up", GgmlDType::Q4K, inner, hidden),
            ("ffn_down", more, hidden, inner),
        ] {
            tensors.push((format!("blk.{at}.{name}.weight"), pools.weight(of_type(dtype), rows, columns)?));
        }
        let norms = [("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", head_dim), ("attn_k_norm", head_dim)];
        for (name, len) in norms.into_iter().take(if sizes.has_norms { 4 } else { 2 }) {
            tensors.push((format!("blk.{at}.{name}.weight"), ones(len)?));
        }
    }
    let count = |count: usize| Value::U32(count as u32);
    let metadata = [
        ("embedding_length", count(hidden)),
        ("feed_forward_length", count(inner)),
        ("block_count", count(layers)),
        ("attention.head_count", count(heads)),
        ("attention.head_count_kv", count(kv_heads)),
        ("attention.key_length", count(head_dim)),
        ("attention.value_length", count(head_dim)),
        ("rope.dimension_count", count(head_dim)),
        ("rope.freq_base", Value::F32(sizes.theta)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("context_length", count(4096)),
    ];
    let mut metadata: Vec<(String, Value)> =
        metadata.into_iter().map(|(name, value)| (format!("{architecture}.{name}"), value)).collect();
    metadata.push(("general.architecture".into(), Value::String(architecture.into())));
    // llama.cpp demands these of a file without a tokenizer.
    metadata.push(("tokenizer.ggml.model".into(), Value::String("no_vocab".into())));
    metadata.push((format!("{architecture}.vocab_size"), count(vocab)));
    let name = of.map_or_else(|| "mixed".into(), |of| format!("{of:?}"));
    let path = std::env::temp_dir().join(format!("opara-{}-{architecture}-{name}.gguf", std::process::id()));
    let written = Written(path);
    let mut file = BufWriter::new(File::create(&written.0)?);
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.flush()?;
    Ok(written)
}

/// Microseconds of a step of this library's own decoder with the same file, f16, and of the step alone, as its executor replays it.
pub fn own_us(Written(path): &Written, prompt_tokens: usize, tokens: usize, device: &Device) -> Result<[f64; 2]> {
    let model = Arc::new(Decoder::load_gguf(path.as_path(), DType::F16, device, 1, prompt_tokens + tokens + 8)?);
    let mut engine = Engine::new(model, Options { builder: Some(OparaExecutor::builder()), ..Options::default() })?;
    let mut step_us = f64::INFINITY;
    // The first text builds the graphs.
    for tenant in 0..4 {
        let prompt = (1..=prompt_tokens as u32).collect();
        let request = Request { prompt, most: tokens, tenant, ..Request::default() };
        let mut first = None;
        engine.generate(&[request], |_, _| {
            first.get_or_insert_with(Instant::now);
        })?;
        let seconds = first.context("no token was written")?.elapsed().as_secs_f64();
        step_us = step_us.min(1e6 * seconds / (tokens - 1) as f64);
    }
    let alone = engine.reports().pop().context("the engine has no executor")?.replay_us();
    Ok([step_us, alone])
}
