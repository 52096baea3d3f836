//! Decoders compared with transformers on the same weights, and their steps with whole passes.

mod damaged;
mod ends;
mod generation;
mod gguf;
mod gguf_text;
mod made_checkpoint;
mod made_gguf;
mod pieces;
mod refused_checkpoint;
mod refused_gguf;
mod sentencepiece;
mod templates;
mod text;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle::{DType, Device, Result, Tensor};
use opara_models::decoder::{Config, Decoder};

const CPU: &Device = &Device::Cpu;

/// The files of `reference/decoder.py`.
const MODELS: [&str; 11] = [
    "llama3",
    "smollm2",
    "mistral",
    "qwen2",
    "qwen2-windows",
    "qwen3",
    "gemma3",
    "gemma3-caps",
    "phi3",
    "phi3-short",
    "phi3-long",
];

/// Inputs and outputs of transformers.
struct Reference {
    config: Config,
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    fn of(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/decoder");
        let json = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("the file is there");
        let config = Config::from_json(&serde_json::from_str(&json).expect("JSON")).expect("a configuration");
        let tensors = candle::safetensors::load(folder.join(format!("{name}.safetensors")), CPU).expect("tensors");
        Self { config, tensors }
    }

    fn ids(&self) -> Tensor {
        self.tensors["ids"].to_dtype(DType::U32).expect("integers")
    }

    fn model(&self) -> Decoder {
        load(&self.config, self.ids().dim(1).expect("(batch, tokens)"))
    }
}

fn load(config: &Config, context: usize) -> Decoder {
    Decoder::load(opara_weights::seeded(11, DType::F32, CPU), config, context).expect("seeded weights fit")
}

fn max_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Logits of all tokens, given in parts of these lengths: `(batch, tokens, vocab)`.
fn logits(model: &Decoder, ids: &Tensor, parts: &[usize]) -> Result<Tensor> {
    let mut cache = model.cache(ids.dim(0)?).expect("a cache");
    let (mut at, mut logits) = (0, Vec::new());
    for &tokens in parts {
        let hidden = model.forward(&ids.narrow(1, at, tokens)?, &cache)?;
        logits.push(model.logits(&hidden)?);
        at += tokens;
        cache = cache.at(at)?;
    }
    Tensor::cat(&logits, 1)
}

/// Logits of a few tokens.
fn answer(model: &Decoder) -> Vec<f32> {
    let ids = Tensor::new(&[[1u32, 7, 30, 2, 9]], CPU).expect("tokens");
    let given = logits(model, &ids, &[5]).expect("logits");
    given.flatten_all().and_then(|logits| logits.to_vec1()).expect("floats")
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("it is written");
        path
    }
}

#[test]
fn logits_are_those_of_transformers() -> Result<()> {
    for name in MODELS {
        let reference = Reference::of(name);
        let got = logits(&reference.model(), &reference.ids(), &[28])?;
        let difference = max_difference(&got, &reference.tensors["logits"])?;
        assert!(difference < 1e-4, "{name}: {difference}");
    }
    Ok(())
}

#[test]
fn a_text_read_in_parts_gives_the_same_logits() -> Result<()> {
    for name in MODELS {
        let reference = Reference::of(name);
        for parts in [vec![1; 28], vec![16, 8, 1, 1, 2]] {
            let got = logits(&reference.model(), &reference.ids(), &parts)?;
            let difference = max_difference(&got, &reference.tensors["logits"])?;
            assert!(difference < 1e-4, "{name} in parts of {parts:?}: {difference}");
        }
    }
    Ok(())
}

/// The message of an error.
fn told<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn what_a_configuration_lacks_or_does_not_know_is_said() {
    let with = |name: &str, value: serde_json::Value| {
        let mut json = serde_json::json!({
            "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 64,
        });
        json[name] = value;
        Config::from_json(&json)
    };
    use serde_json::json;
    let unknown = told(with("model_type", json!("mamba")));
    assert!(unknown.contains("`mamba`") && unknown.contains("qwen3") && unknown.contains("phi3"), "{unknown}");
    for (name, value, expected) in [
        ("hidden_size", json!(null), "`hidden_size` is missing"),
        ("vocab_size", json!("many"), "`vocab_size` is \"many\", not a number above 0"),
        ("num_key_value_heads", json!(3), "3 heads of keys do not divide 4"),
        ("hidden_act", json!("relu6"), "`relu6`"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}), "`yarn`"),
        ("rope_scaling", json!({"rope_type": "linear"}), "`rope_scaling.factor` is missing"),
        ("layer_types", json!(["full_attention"]), "1 `layer_types` of 3 layers"),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention", "full_attention"]),
            "`sliding_window` is missing",
        ),
    ] {
        let told = told(with(name, value));
        assert!(told.contains(expected), "{name}: {told}");
    }
}

#[test]
fn old_and_new_files_of_transformers_mean_the_same() {
    use serde_json::json;
    let base = json!({
        "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7, "sliding_window": 6,
    });
    let of = |fields: serde_json::Value| {
        let mut json = base.clone();
        json.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Config::from_json(&json).expect("a configuration")
    };
    let old = of(json!({
        "rope_theta": 1e5, "rope_local_base_freq": 1e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }));
    let new = of(json!({
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention"],
    }));
    assert_eq!(old, new);
    let nested = Config::from_json(&json!({"model_type": "gemma3", "text_config": base})).expect("a configuration");
    assert_eq!(nested, of(json!({})));
}
