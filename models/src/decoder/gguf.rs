//! GGUF files: one file of metadata and of tensors, most of which are quantised.
//!
//! What the keys and tensors are called: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle::quantized::gguf_file::{Content, TensorInfo, Value};
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{bail, DType, Device, Tensor};
use opara_candle::ops::{Activation, QuantizedWeight};

use super::architecture::Architecture;
use super::config::{Config, LayerConfig};
use super::error::{DecoderError, Result};
use super::matrix::Matrix;
use super::rotary::{Rotary, Scaling};

/// An open file. Tensors are read when they are asked for.
pub(super) struct Gguf {
    path: PathBuf,
    content: Content,
    architecture: Architecture,
    /// Heads of queries, and of keys: Llama's rows are in another order in these files.
    heads: (usize, usize),
    dtype: DType,
    device: Device,
}

impl Gguf {
    /// Reads the header, and checks that the tensors are inside the file.
    pub fn open(path: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let damaged = |reason: String| DecoderError::Gguf { path: path.into(), reason };
        let read = |source| DecoderError::Read { path: path.into(), source };
        let file = File::open(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let content = Content::read(&mut BufReader::new(file)).map_err(|error| damaged(error.to_string()))?;
        for (name, info) in &content.tensor_infos {
            let size = (info.shape.elem_count() / info.ggml_dtype.block_size() * info.ggml_dtype.type_size()) as u64;
            let end = content.tensor_data_offset.saturating_add(info.offset).saturating_add(size);
            if end > bytes {
                return Err(damaged(format!(
                    "tensor `{name}` ends at byte {end}, and the file has {bytes}: it is cut short"
                )));
            }
        }
        let name = match content.metadata.get("general.architecture") {
            Some(Value::String(name)) => name.clone(),
            _ => return Err(damaged("`general.architecture` is missing".into())),
        };
        let architecture = Architecture::of(&name)?;
        let (path, device) = (path.to_path_buf(), device.clone());
        Ok(Self { path, content, architecture, heads: (1, 1), dtype, device })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all tensors as they are in the device's memory.
    pub fn bytes(&self) -> u64 {
        let of = |info: &TensorInfo| {
            let elements = info.shape.elem_count();
            let quantized = self.quantized(info.ggml_dtype, elements).filter(|_| info.shape.rank() == 2);
            quantized.unwrap_or(elements * self.dtype.size_in_bytes()) as u64
        };
        self.content.tensor_infos.values().map(of).sum()
    }

    /// Bytes of so many elements of a matrix that stays quantised on the device; `None` if it is expanded.
    fn quantized(&self, dtype: GgmlDType, elements: usize) -> Option<usize> {
        match dtype {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => None,
            _ if self.device.is_cpu() => Some(elements / dtype.block_size() * dtype.type_size()),
            _ => QuantizedWeight::bytes(dtype, elements),
        }
    }

    fn damaged(&self, reason: impl Into<String>) -> DecoderError {
        DecoderError::Gguf { path: self.path.clone(), reason: reason.into() }
    }

    /// A value of the metadata, of the architecture's if the name begins with a dot.
    fn value(&self, name: &str) -> Option<&Value> {
        let architecture = || self.text("general.architecture").unwrap_or_default();
        match name.starts_with('.') {
            true => self.content.metadata.get(&format!("{}{name}", architecture())),
            false => self.content.metadata.get(name),
        }
    }

    /// The names of all metadata.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.content.metadata.keys().map(String::as_str)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Texts of a list.
    pub fn texts(&self, name: &str) -> Option<Vec<&str>> {
        let Value::Array(values) = self.value(name)? else { return None };
        fn text(value: &Value) -> Option<&str> {
            match value {
                Value::String(text) => Some(text),
                _ => None,
            }
        }
        values.iter().map(text).collect()
    }

    /// Numbers of a list.
    pub fn numbers(&self, name: &str) -> Option<Vec<u64>> {
        let Value::Array(values) = self.value(name)? else { return None };
        values.iter().map(whole).collect()
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.value(name)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A whole number; the first, if there is one for each layer.
    pub fn count(&self, name: &str) -> Option<usize> {
        match self.value(name)? {
            Value::Array(values) => values.first().and_then(whole),
            value => whole(value),
        }
        .map(|number| number as usize)
    }

    fn needed(&self, name: &str) -> Result<usize> {
        let count = self.count(name).filter(|&count| count > 0);
        count.ok_or_else(|| self.damaged(format!("the architecture's `{name}` is missing or not a number above 0")))
    }

    fn number(&self, name: &str) -> Option<f64> {
        match self.value(name)? {
            Value::F32(number) => Some(f64::from(*number)),
            Value::F64(number) => Some(*number),
            value => whole(value).map(|number| number as f64),
        }
    }

    fn has(&self, tensor: &str) -> bool {
        self.content.tensor_infos.contains_key(tensor)
    }

    /// The configuration that the metadata describes.
    pub fn config(&mut self) -> Result<Config> {
        let (hidden, heads) = (self.needed(".embedding_length")?, self.needed(".attention.head_count")?);
        let kv_heads = self.count(".attention.head_count_kv").unwrap_or(heads);
        if kv_heads == 0 {
            return Err(self.damaged("no heads of keys"));
        }
        self.heads = (heads, kv_heads);
        let head_dim = self.count(".attention.key_length").unwrap_or(hidden / heads);
        let rows = self.content.tensor_infos.get("token_embd.weight").map(|info| info.shape.dims()[0]);
        let vocab = rows.ok_or_else(|| self.damaged("tensor `token_embd.weight` is missing"))?;
        let max_positions = self.needed(".context_length")?;
        let is_gemma = self.architecture == Architecture::Gemma3;
        let rotary = self.rotary(head_dim, max_positions)?;
        let local = Rotary { theta: 1e4, dim: rotary.dim, scaling: Scaling::Default };
        let window = self.count(".attention.sliding_window").filter(|&window| window > 0);
        let layer = |layer: usize| match is_gemma {
            // Five layers with a window, then one without.
            true if !(layer + 1).is_multiple_of(6) => LayerConfig { window: window.or(Some(1024)), rotary: 1 },
            true => LayerConfig { window: None, rotary: 0 },
            false => LayerConfig { window: window.filter(|_| self.architecture == Architecture::Phi3), rotary: 0 },
        };
        let layers = self.needed(".block_count")?;
        // Gemma 3 of 27B alone scales by another size than a head's.
        let scale_of = if is_gemma && layers == 62 { hidden / heads } else { head_dim };
        let eps = self.number(".attention.layer_norm_rms_epsilon");
        let config = Config {
            architecture: self.architecture,
            vocab,
            hidden,
            intermediate: self.needed(".feed_forward_length")?,
            heads,
            kv_heads,
            head_dim,
            layers: (0..layers).map(layer).collect(),
            rotaries: if is_gemma { vec![rotary, local] } else { vec![rotary] },
            max_positions,
            eps: eps.ok_or_else(|| self.damaged("the epsilon of norms is missing"))?,
            activation: if is_gemma { Activation::Gelu } else { Activation::Silu },
            qkv_bias: self.has("blk.0.attn_q.bias"),
            output_bias: self.has("blk.0.attn_output.bias"),
            mlp_bias: self.has("blk.0.ffn_up.bias"),
            head_norms: self.has("blk.0.attn_q_norm.weight"),
            post_norms: is_gemma,
            one_plus: is_gemma,
            packed: self.has("blk.0.attn_qkv.weight"),
            tied: !self.has("output.weight"),
            embedding_scale: is_gemma.then(|| (hidden as f64).sqrt()),
            attention_scale: (scale_of as f64).powf(-0.5),
            logit_cap: None,
            bos: self.count("tokenizer.ggml.bos_token_id").map(|token| token as u32),
            eos: ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
                .iter()
                .filter_map(|name| self.count(name).map(|token| token as u32))
                .collect(),
        };
        config.check()?;
        Ok(config)
    }

    fn rotary(&self, head_dim: usize, max_positions: usize) -> Result<Rotary> {
        let is_gemma = self.architecture == Architecture::Gemma3;
        let theta = self.number(".rope.freq_base").unwrap_or(if is_gemma { 1e6 } else { 1e4 });
        let dim = self.count(".rope.dimension_count").unwrap_or(head_dim);
        let list = |name: &str| -> Result<Vec<f64>> {
            let read = || self.dense(name)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
            read().map_err(|error| self.damaged(format!("tensor `{name}`: {error}")))
        };
        let scaling = if self.has("rope_freqs.weight") {
            Scaling::Factors(list("rope_freqs.weight")?)
        } else if self.has("rope_factors_long.weight") {
            let original = self.count(".rope.scaling.original_context_length").unwrap_or(max_positions);
            let factor = max_positions as f64 / original as f64;
            let magnitude = self.number(".rope.scaling.attn_factor");
            Scaling::LongRope {
                short: list("rope_factors_short.weight")?,
                long: list("rope_factors_long.weight")?,
                original,
                magnitude: magnitude.unwrap_or_else(|| Scaling::long_rope_magnitude(factor, original)),
            }
        } else {
            match self.text(".rope.scaling.type") {
                None | Some("none") => Scaling::Default,
                Some("linear") => Scaling::Linear(self.number(".rope.scaling.factor").unwrap_or(1.)),
                Some(other) => {
                    return Err(DecoderError::config(format!("rotary scaling `{other}`: known are none and linear")))
                }
            }
        };
        Ok(Rotary { theta, dim, scaling })
    }

    /// What a tensor is called in these files.
    fn name(&self, name: &str) -> String {
        let Some(rest) = name.strip_prefix("model.layers.") else {
            let renamed = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm");
            return renamed.replace("lm_head", "output");
        };
        let (layer, rest) = rest.split_once('.').unwrap_or((rest, ""));
        let (part, kind) = rest.rsplit_once('.').unwrap_or((rest, ""));
        let part = match part {
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "input_layernorm" => "attn_norm",
            "post_attention_layernorm" if self.architecture == Architecture::Gemma3 => "post_attention_norm",
            "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
            "post_feedforward_layernorm" => "post_ffw_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            other => other,
        };
        format!("blk.{layer}.{part}.{kind}")
    }

    /// A tensor as it is in the file, in the host's memory.
    fn read(&self, name: &str, shape: Option<&[usize]>) -> candle::Result<QTensor> {
        let path = self.path.display();
        let Some(info) = self.content.tensor_infos.get(name) else { bail!("tensor `{name}` is not in {path}") };
        if let Some(shape) = shape.filter(|shape| *shape != info.shape.dims()) {
            bail!("tensor `{name}` in {path} has shape {:?}, not {shape:?}", info.shape.dims())
        }
        let mut file = BufReader::new(File::open(&self.path)?);
        info.read(&mut file, self.content.tensor_data_offset, &Device::Cpu)
    }

    fn dense(&self, name: &str) -> candle::Result<Tensor> {
        self.read(name, None)?.dequantize(&Device::Cpu)
    }

    /// How many heads a tensor's rows belong to, if they are in GGUF's order.
    fn reordered(&self, name: &str) -> Option<usize> {
        let heads = if name.contains("self_attn.q_proj") { self.heads.0 } else { self.heads.1 };
        let is_turned = name.contains("self_attn.q_proj") || name.contains("self_attn.k_proj");
        (self.architecture == Architecture::Llama && is_turned).then_some(heads)
    }

    pub fn tensor(&self, name: &str, shape: &[usize]) -> candle::Result<Tensor> {
        let tensor = self.read(&self.name(name), Some(shape))?.dequantize(&Device::Cpu)?;
        let tensor = match self.reordered(name) {
            Some(heads) => {
                let order: Vec<u32> = order(shape[0], heads).map(|row| row as u32).collect();
                tensor.index_select(&Tensor::new(order, &Device::Cpu)?, 0)?
            }
            None => tensor,
        };
        tensor.to_dtype(self.dtype)?.to_device(&self.device)
    }

    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> candle::Result<Matrix> {
        let stored = self.name(name);
        let info = self.content.tensor_infos.get(&stored);
        if info.is_none_or(|info| self.quantized(info.ggml_dtype, rows * columns).is_none()) {
            return Ok(Matrix::Dense(self.tensor(name, &[rows, columns])?));
        }
        let tensor = self.read(&stored, Some(&[rows, columns]))?;
        let Some(heads) = self.reordered(name) else { return Ok(Matrix::Quantized(Arc::new(tensor))) };
        // Blocks lie along rows, which move as a whole.
        let data = tensor.data()?;
        let row = data.len() / rows;
        let moved: Vec<u8> = order(rows, heads).flat_map(|from| &data[from * row..][..row]).copied().collect();
        let storage = QStorage::from_data(Cow::Owned(moved), &Device::Cpu, tensor.dtype())?;
        Ok(Matrix::Quantized(Arc::new(QTensor::new(storage, (rows, columns))?)))
    }
}

fn whole(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::U64(n) => Some(n),
        Value::I8(n) => n.try_into().ok(),
        Value::I16(n) => n.try_into().ok(),
        Value::I32(n) => n.try_into().ok(),
        Value::I64(n) => n.try_into().ok(),
        _ => None,
    }
}

/// For each row, where GGUF has it: there the two elements of a pair follow one another, while here the first elements of all
/// pairs come first.
fn order(rows: usize, heads: usize) -> impl Iterator<Item = usize> {
    let dim = rows / heads.max(1);
    (0..rows).map(move |row| {
        let (head, at) = (row / dim, row % dim);
        head * dim + at % (dim / 2) * 2 + at / (dim / 2)
    })
}
