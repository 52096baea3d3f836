//! Checkpoints of tiny encoders with seeded weights, and what transformers computes with them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use candle::{DType, Device};
use opara_serve::batch::{Bucket, Buckets, Engine};
use opara_serve::embed::{EmbedError, Embedder, TextModel, TextRow};
use serde::Deserialize;
use serde_json::{json, Value};
use tempfile::TempDir;

/// A file of `serve/tests/data/encoders`, which `serve/tests/reference/encoders.py` writes.
#[derive(Deserialize)]
pub struct Case {
    pub config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    pub ids: Vec<Vec<u32>>,
    pub expected: Vec<HashMap<String, Vec<f32>>>,
    /// The vector of [`picture`].
    #[serde(default)]
    pub image: Vec<f32>,
}

/// Pixels of three channels, 16 by 16.
pub fn picture() -> Result<Vec<f32>> {
    let weights = opara_weights::seeded(7, DType::F32, &Device::Cpu);
    Ok((weights.get(3 * 16 * 16, "input")? * 10.)?.to_vec1()?)
}

impl Case {
    pub fn read(name: &str) -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/encoders/{name}.json"));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// The checkpoint as transformers saves it.
    pub fn folder(&self) -> Result<TempDir> {
        let folder = tempfile::tempdir()?;
        let weights = opara_weights::seeded(7, DType::F32, &Device::Cpu);
        let tensor = |(name, shape): (&String, &Vec<usize>)| Ok((name.clone(), weights.get(shape.as_slice(), name)?));
        let tensors = self.tensors.iter().map(tensor).collect::<Result<HashMap<_, _>>>()?;
        candle::safetensors::save(&tensors, folder.path().join("model.safetensors"))?;
        put(&folder, "config.json", &self.config)?;
        let words: serde_json::Map<String, Value> = (0..60).map(|id| (format!("w{id}"), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "w1"},
        });
        put(&folder, "tokenizer.json", &tokenizer)?;
        Ok(folder)
    }

    /// The same in a folder of sentence-transformers, with this pooling and nothing behind it.
    pub fn pooled(&self, mode: &str) -> Result<TempDir> {
        let folder = self.folder()?;
        let module = |kind: &str, path: &str| json!({"idx": 0, "name": path, "path": path, "type": format!("sentence_transformers.models.{kind}")});
        put(&folder, "modules.json", &json!([module("Transformer", ""), module("Pooling", "1_Pooling")]))?;
        put(&folder, "1_Pooling/config.json", &json!({"pooling_mode": mode}))?;
        Ok(folder)
    }

    /// The same as an encoder to words.
    pub fn splade(&self) -> Result<TempDir> {
        let folder = self.folder()?;
        let module = |kind: &str, path: &str| json!({"idx": 0, "name": path, "path": path, "type": kind});
        let list = json!([
            module("sentence_transformers.sparse_encoder.models.MLMTransformer", ""),
            module("sentence_transformers.sparse_encoder.models.SpladePooling", "1_SpladePooling"),
        ]);
        put(&folder, "modules.json", &list)?;
        put(
            &folder,
            "1_SpladePooling/config.json",
            &json!({"pooling_strategy": "max", "activation_function": "relu"}),
        )?;
        Ok(folder)
    }
}

pub fn put(folder: &TempDir, name: &str, value: &Value) -> Result<()> {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
    Ok(std::fs::write(path, value.to_string())?)
}

pub fn embedder(folder: &Path) -> Result<Embedder> {
    let model = TextModel::open(folder)?;
    let limit = model.sizes().positions;
    let buckets = model.buckets(&Device::Cpu, DType::F32, &[1, 4], &[12], Some(4 * limit))?;
    let lengths: Vec<usize> = buckets.iter().map(|b| b.length).collect();
    Ok(model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1, 4], lengths, 4 * limit)?)?)
}

/// The same for texts side by side; `None` if the model does not take them so.
pub fn packed(folder: &Path) -> Result<Option<Embedder>> {
    let model = TextModel::open(folder)?;
    match model.embedder(&Device::Cpu, DType::F32, &Buckets::packed([16, 80], model.sizes().positions.min(80))?) {
        Ok(embedder) => Ok(Some(embedder)),
        Err(EmbedError::Packing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The answers of all texts in one batch, and of each alone. Padding must not change them.
pub fn answers(embedder: &Embedder, ids: &[Vec<u32>], length: usize) -> Result<[Vec<Vec<f32>>; 2]> {
    let rows: Vec<TextRow> = ids.iter().cloned().map(TextRow::from).collect();
    let together = embedder.run(Bucket { batch: 4, length }, &rows.iter().collect::<Vec<_>>())?;
    let alone = |row: &TextRow| Ok(embedder.run(Bucket { batch: 1, length: row.ids.len() }, &[row])?.swap_remove(0));
    Ok([together, rows.iter().map(alone).collect::<Result<_>>()?])
}

/// Vectors that agree within the rounding of f32, in direction and in each element.
pub fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| -> f64 { got.iter().zip(expected).map(|(&a, &b)| f(a.into(), b.into())).sum() };
    let norm = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    let cosine = if norm > 0. { sum(&|a, b| a * b) / norm } else { 1. };
    let scale = expected.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    let most = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
    assert!(
        cosine >= 0.999_999 && most <= 2e-5 * scale,
        "{what}: cosine {cosine}, difference {most} at a scale of {scale}"
    );
}
