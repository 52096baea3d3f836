//! GGUF files: one file of metadata and of tensors, most of which are quantised.
//!
//! What the keys and tensors are called: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle::quantized::gguf_file::{TensorInfo, Value};
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{bail, DType, Device, Tensor};
use opara_candle::ops::QuantizedWeight;
use opara_weights::Unread;

use super::architecture::Architecture;
use super::error::{DecoderError, Result};
use super::header::{whole, Header};
use super::matrix::Matrix;

/// An open file. Tensors are read when they are asked for.
pub(super) struct Gguf {
    path: PathBuf,
    pub(super) header: Header,
    pub(super) architecture: Architecture,
    /// What `general.architecture` says: keys of the architecture begin with it.
    name: String,
    /// Heads of queries, and of keys: Llama's rows are in another order in these files.
    pub(super) heads: (usize, usize),
    dtype: DType,
    device: Device,
    /// Keys and tensors that were read by now.
    read: RefCell<BTreeSet<String>>,
}

/// The architecture's keys that change no answer.
const HARMLESS: [&str; 3] = ["vocab_size", "rope.scaling.finetuned", "tensor_data_layout"];

/// The architecture's keys that change no answer where they have this value; flags are 0 and 1.
const NEUTRAL: [(&str, f64); 11] = [
    ("attention.causal", 1.),
    ("attention.clamp_kqv", 0.),
    ("attention.max_alibi_bias", 0.),
    ("attn_logit_softcapping", 0.),
    ("embedding_scale", 1.),
    ("expert_count", 0.),
    ("expert_used_count", 0.),
    ("logit_scale", 1.),
    ("residual_scale", 1.),
    ("rope.scaling.attn_factor", 1.),
    ("use_parallel_residual", 0.),
];

impl Gguf {
    /// Reads the header, and checks that the tensors are inside the file.
    pub fn open(path: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let header = Header::read(path)?;
        let name = match header.metadata.get("general.architecture") {
            Some(Value::String(name)) => name.clone(),
            _ => {
                let reason = "`general.architecture` is missing".into();
                return Err(DecoderError::Gguf { path: path.into(), reason });
            }
        };
        let architecture = Architecture::of(&name)?;
        if !Architecture::is_of_gguf(&name) {
            let reason = format!("`general.architecture` is `{name}`, which llama.cpp does not write: the order of its rows is not known");
            return Err(DecoderError::Gguf { path: path.into(), reason });
        }
        let (path, device) = (path.to_path_buf(), device.clone());
        Ok(Self { path, header, architecture, name, heads: (1, 1), dtype, device, read: RefCell::default() })
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
        self.header.tensors.values().map(|stored| of(&stored.info)).sum()
    }

    /// Bytes of so many elements of a matrix that stays quantised on the device; `None` if it is expanded.
    fn quantized(&self, dtype: GgmlDType, elements: usize) -> Option<usize> {
        match dtype {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => None,
            _ if self.device.is_cpu() => Some(elements / dtype.block_size() * dtype.type_size()),
            _ => QuantizedWeight::bytes(dtype, elements),
        }
    }

    /// The error of a file that is not sound.
    pub fn damaged(&self, reason: impl Into<String>) -> DecoderError {
        DecoderError::Gguf { path: self.path.clone(), reason: reason.into() }
    }

    /// A value of the metadata, of the architecture's if the name begins with a dot.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        let key = match name.starts_with('.') {
            true => format!("{}{name}", self.name),
            false => name.to_owned(),
        };
        let value = self.header.metadata.get(&key);
        self.read.borrow_mut().insert(key);
        value
    }

    /// The names of all metadata.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.header.metadata.keys().map(String::as_str)
    }

    /// Whether there is such metadata, whatever it says.
    pub fn has_key(&self, name: &str) -> bool {
        self.header.metadata.contains_key(name)
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

    /// The same, with fractions.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let Value::Array(values) = self.value(name)? else { return None };
        values.iter().map(|value| number(value).map(|number| number as f32)).collect()
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.value(name)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A whole number of 32 bits; one for each layer, if they are all the same.
    pub fn count(&self, name: &str) -> Option<usize> {
        let number = match self.value(name)? {
            Value::Array(values) => {
                let first = values.first().and_then(whole)?;
                values.iter().all(|value| whole(value) == Some(first)).then_some(first)?
            }
            value => whole(value)?,
        };
        u32::try_from(number).ok().map(|number| number as usize)
    }

    /// A value, if it is there, as `parse` reads it; `kind` says in errors what it is to be.
    pub fn parsed<T>(&self, name: &str, kind: &str, parse: impl Fn(&Self, &str) -> Option<T>) -> Result<Option<T>> {
        match self.value(name).map(|value| (parse(self, name), value)) {
            Some((None, value)) => Err(self.damaged(format!("`{name}` is {}, not {kind}", short(value)))),
            parsed => Ok(parsed.and_then(|(parsed, _)| parsed)),
        }
    }

    pub fn optional(&self, name: &str) -> Result<Option<usize>> {
        self.parsed(name, "one number of 32 bits for all layers", Self::count)
    }

    pub(super) fn needed(&self, name: &str) -> Result<usize> {
        let count = self.optional(name)?.filter(|&count| count > 0);
        count.ok_or_else(|| self.damaged(format!("the architecture's `{name}` is missing or not a number above 0")))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.parsed(name, "a number", |of, name| of.value(name).and_then(number))
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.header.tensors.contains_key(tensor)
    }

    /// Refuses or warns of parts that were not read.
    fn report(&self, parts: Vec<String>, unread: Unread) -> Result<()> {
        match parts.is_empty() {
            true => Ok(()),
            false => unread.report(DecoderError::UnreadGguf { path: self.path.clone(), parts }),
        }
    }

    /// Refuses keys of the architecture that were not read by now and are not harmless, and files that hold no model. Other keys
    /// describe the file (`general.*`), the tokenizer, or belong to the program that wrote them.
    pub(super) fn check_metadata(&self, context: usize, unread: Unread) -> Result<()> {
        let read = self.read.borrow();
        let is_unread = |key: &str, value: &Value| {
            if key == "tokenizer.ggml.suppress_tokens" {
                return !matches!(value, Value::Array(tokens) if tokens.is_empty());
            }
            if key == "general.type" {
                return !matches!(value, Value::String(kind) if kind == "model");
            }
            let Some(rest) = key.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('.')) else {
                return key.starts_with("adapter.");
            };
            let is_neutral = |(name, neutral): &(&str, f64)| *name == rest && number(value) == Some(*neutral);
            let is_of_pictures =
                self.architecture == Architecture::Gemma3 && (rest.starts_with("vision.") || rest.starts_with("mm."));
            // A window that no text leaves.
            let is_wide =
                rest == "attention.sliding_window" && whole(value).is_some_and(|n| n == 0 || n >= context as u64);
            !(read.contains(key)
                || HARMLESS.contains(&rest)
                || NEUTRAL.iter().any(is_neutral)
                || is_of_pictures
                || is_wide)
        };
        let keys = self.header.metadata.iter().filter(|(key, value)| is_unread(key, value));
        let mut parts: Vec<_> = keys.map(|(key, value)| format!("`{key}` ({})", short(value))).collect();
        parts.sort();
        self.report(parts, unread)
    }

    /// Refuses tensors that were not read by now and are not harmless.
    pub fn check_tensors(&self, unread: Unread) -> Result<()> {
        let read = self.read.borrow();
        let is_gemma = self.architecture == Architecture::Gemma3;
        // Old files have the frequencies of the rotary embedding in each layer; files of Gemma may have the model of pictures, too.
        let is_harmless = |name: &str| {
            name.ends_with(".attn_rot_embd.weight") || is_gemma && (name.starts_with("v.") || name.starts_with("mm."))
        };
        let names = self.header.tensors.keys().filter(|name| !read.contains(*name) && !is_harmless(name));
        let mut parts: Vec<_> = names.map(|name| format!("tensor `{name}`")).collect();
        parts.sort();
        self.report(parts, unread)
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
        let Some(stored) = self.header.tensors.get(name) else { bail!("tensor `{name}` is not in {path}") };
        if let Some(shape) = shape.filter(|shape| *shape != stored.info.shape.dims()) {
            bail!("tensor `{name}` in {path} has shape {:?}, not {shape:?}", stored.info.shape.dims())
        }
        self.read.borrow_mut().insert(name.to_owned());
        let (mut file, start) = self.header.open(stored)?;
        stored.info.read(&mut file, start, &Device::Cpu)
    }

    pub(super) fn dense(&self, name: &str) -> candle::Result<Tensor> {
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
        let found = self.header.tensors.get(&stored);
        if found.is_none_or(|found| self.quantized(found.info.ggml_dtype, rows * columns).is_none()) {
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

/// A number, and 0 and 1 of a flag.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::F32(number) => Some(f64::from(*number)),
        Value::F64(number) => Some(*number),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        value => whole(value).map(|number| number as f64),
    }
}

/// The beginning of a value.
fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::Bool(flag) => flag.to_string(),
        value => number(value).map_or_else(|| format!("{value:?}"), |number| number.to_string()),
    };
    text.chars().take(60).collect()
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
