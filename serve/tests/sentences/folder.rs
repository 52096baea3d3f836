//! Folders of sentence-transformers with a tiny BERT of random weights.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_serve::batch::Buckets;
use opara_serve::embed::{EmbedError, Embedder, TextModel};
use serde_json::{json, Value};
use tempfile::TempDir;

pub const WIDTH: usize = 16;
pub const HEADS: usize = 2;
pub const LAYERS: usize = 2;
pub const INNER: usize = 24;
pub const POSITIONS: usize = 32;
pub const TYPES: usize = 2;

pub const WORDS: [&str; 24] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "dog", "bird", "sat", "slept", "sings", "on",
    "under", "mat", "sun", "query", "document", ":", "river", "stone", "fish", "é",
];

/// Tensors by name: shape and values.
pub type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A folder that ends with the test.
pub struct Folder {
    dir: TempDir,
    pub weights: Weights,
}

/// Adds a tensor of random values around `middle`.
pub fn random(weights: &mut Weights, rng: &mut fastrand::Rng, name: &str, shape: &[usize], middle: f32, spread: f32) {
    let count = shape.iter().product();
    let values = (0..count).map(|_| middle + spread * (2. * rng.f32() - 1.)).collect();
    weights.insert(name.into(), (shape.into(), values));
}

pub fn bert_weights(seed: u64) -> Weights {
    let (mut weights, mut rng) = (Weights::new(), fastrand::Rng::with_seed(seed));
    let mut add = |name: &str, shape: &[usize], middle, spread| {
        random(&mut weights, &mut rng, name, shape, middle, spread);
    };
    add("embeddings.word_embeddings.weight", &[WORDS.len(), WIDTH], 0., 1.5);
    add("embeddings.position_embeddings.weight", &[POSITIONS, WIDTH], 0., 1.);
    add("embeddings.token_type_embeddings.weight", &[TYPES, WIDTH], 0., 1.);
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in 0..LAYERS {
        let at = format!("encoder.layer.{layer}");
        let linears = [
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH),
            ("output.dense", WIDTH, INNER),
        ];
        for (name, out, input) in linears {
            add(&format!("{at}.{name}.weight"), &[out, input], 0., 0.5);
            add(&format!("{at}.{name}.bias"), &[out], 0., 0.2);
        }
        norms.extend([format!("{at}.attention.output.LayerNorm"), format!("{at}.output.LayerNorm")]);
    }
    for name in norms {
        add(&format!("{name}.weight"), &[WIDTH], 1., 0.3);
        add(&format!("{name}.bias"), &[WIDTH], 0., 0.3);
    }
    weights
}

pub fn config() -> Value {
    json!({
        "model_type": "bert", "vocab_size": WORDS.len(), "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS, "type_vocab_size": TYPES, "layer_norm_eps": 1e-12,
    })
}

/// A WordPiece tokenizer as those of BERTs. `ends` says whether it puts `[CLS]` and `[SEP]` around a text.
pub fn tokenizer(lower_case: bool, ends: bool) -> Value {
    let special = |id: usize| {
        json!({"id": id, "content": WORDS[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let vocab: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| (word.to_string(), id.into())).collect();
    let post = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": (0..5).map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": lower_case},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": if ends { post } else { Value::Null },
        "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// The list of modules of these classes, with their paths.
pub fn list(modules: &[(&str, &str)]) -> Value {
    let entry = |(index, (class, path)): (usize, &(&str, &str))| json!({"idx": index, "name": index.to_string(), "path": path, "type": class});
    modules.iter().enumerate().map(entry).collect()
}

pub const TRANSFORMER: (&str, &str) = ("sentence_transformers.models.Transformer", "");
pub const POOLING: (&str, &str) = ("sentence_transformers.models.Pooling", "1_Pooling");
pub const DENSE: (&str, &str) = ("sentence_transformers.models.Dense", "2_Dense");
pub const NORMALIZE: (&str, &str) = ("sentence_transformers.models.Normalize", "2_Normalize");

impl Folder {
    /// Without `modules.json`.
    pub fn plain() -> Result<Self> {
        let folder = Self { dir: tempfile::tempdir()?, weights: bert_weights(1) };
        folder.json("config.json", &config())?;
        folder.json("tokenizer.json", &tokenizer(true, true))?;
        folder.tensors("model.safetensors", &folder.weights)?;
        Ok(folder)
    }

    /// A transformer and the mean.
    pub fn pooled() -> Result<Self> {
        Self::of(&[TRANSFORMER, POOLING], &json!({"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": true}))
    }

    /// These modules, and the configuration of `1_Pooling`.
    pub fn of(modules: &[(&str, &str)], pooling: &Value) -> Result<Self> {
        let folder = Self::plain()?;
        folder.json("modules.json", &list(modules))?;
        folder.json("1_Pooling/config.json", pooling)?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn json(&self, name: &str, value: &Value) -> Result<&Self> {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(self.path()))?;
        std::fs::write(path, value.to_string())?;
        Ok(self)
    }

    pub fn remove(&self, name: &str) -> Result<&Self> {
        std::fs::remove_file(self.path().join(name))?;
        Ok(self)
    }

    pub fn tensors(&self, name: &str, weights: &Weights) -> Result<&Self> {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(self.path()))?;
        let tensor = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
            Ok((name.clone(), Tensor::from_vec(values.clone(), shape.as_slice(), &Device::Cpu)?))
        };
        candle::safetensors::save(&weights.iter().map(tensor).collect::<Result<HashMap<_, _>>>()?, path)?;
        Ok(self)
    }

    pub fn open(&self) -> Result<TextModel, EmbedError> {
        TextModel::open(self.path())
    }

    pub fn embedder(&self) -> Result<Embedder> {
        Ok(self.open()?.embedder(&Device::Cpu, DType::F32, &buckets())?)
    }

    /// Why it is not served as an embedder.
    pub fn refusal(&self) -> String {
        match self.open().and_then(|model| model.embedder(&Device::Cpu, DType::F32, &buckets())) {
            Ok(_) => "it is served".into(),
            Err(error) => error.to_string(),
        }
    }
}

pub fn buckets() -> Buckets {
    Buckets::new([1, 2], [8, POSITIONS], 64).expect("they are sound")
}
