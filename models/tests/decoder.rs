//! Decoders against transformers' on the same weights, and their steps against whole passes.

use std::collections::HashMap;
use std::path::Path;

use candle::{DType, Device, Result, Tensor};
use opara_models::decoder::{Cache, Config, Decoder};

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

/// What transformers computed, and of what.
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

/// Logits of all tokens, given in parts of so many: `(batch, tokens, vocab)`.
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
