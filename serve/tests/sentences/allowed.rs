//! Parts of folders that are not supported, where they are allowed: a warning names each, and the vectors are those without it.

use anyhow::Result;
use candle::{DType, Device};
use opara_serve::embed::TextModel;
use parking_lot::Mutex;
use serde_json::{json, Value};
use tracing_subscriber::prelude::*;

use super::folder::{buckets, list, random, Folder, Weights, DENSE, POOLING, TRANSFORMER, WIDTH};

/// What was logged by all tests of this program.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| line += &format!(" {value:?}"));
        LINES.lock().push(line);
    }
}

/// The warnings that mention this text.
fn warnings(of: &str) -> Vec<String> {
    LINES.lock().iter().filter(|line| line.starts_with("WARN") && line.contains(of)).cloned().collect()
}

fn vectors(folder: &Folder) -> Result<Vec<Vec<f32>>> {
    let model = TextModel::open_with(folder.path(), true)?;
    Ok(model.embedder(&Device::Cpu, DType::F32, &buckets())?.embed(&["the cat sat", "a bird"])?)
}

#[test]
fn what_is_allowed_is_passed_over_and_named() -> Result<()> {
    tracing_subscriber::registry().with(Lines).init();
    let folder = Folder::of(&[TRANSFORMER, POOLING, DENSE], &json!({"pooling_mode": "mean"}))?;
    let (mut weights, mut rng) = (Weights::new(), fastrand::Rng::with_seed(1));
    random(&mut weights, &mut rng, "linear.weight", &[4, WIDTH], 0., 1.);
    folder.tensors("2_Dense/model.safetensors", &weights)?;
    let dense = json!({"in_features": WIDTH, "out_features": 4, "bias": false});
    folder.json("2_Dense/config.json", &dense)?;
    folder.json("sentence_bert_config.json", &json!({"max_seq_length": 32}))?;
    folder.json("config_sentence_transformers.json", &json!({}))?;
    let plain = vectors(&folder)?;
    let with = |base: &Value, fields: Value| {
        let mut value = base.clone();
        fields.as_object().into_iter().flatten().for_each(|(name, field)| value[name] = field.clone());
        value
    };
    let kwargs: Vec<Value> = list(&[TRANSFORMER, POOLING, DENSE])
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| with(entry, json!({"kwargs": ["task"]})))
        .collect();
    let pooling = json!({"pooling_mode": "mean"});
    for (file, before, after, names) in [
        ("modules.json", list(&[TRANSFORMER, POOLING, DENSE]), json!(kwargs), &["`kwargs`"][..]),
        (
            "1_Pooling/config.json",
            pooling.clone(),
            with(&pooling, json!({"pooling_mode_median_tokens": true, "sharpness": 2})),
            &["`pooling_mode_median_tokens` true", "`sharpness` 2"],
        ),
        (
            "2_Dense/config.json",
            dense.clone(),
            with(&dense, json!({"scale": 2, "module_input_name": "token_embeddings"})),
            &["`scale` 2", "`module_input_name` \"token_embeddings\""],
        ),
        (
            "sentence_bert_config.json",
            json!({"max_seq_length": 32}),
            json!({"max_seq_length": 32, "model_args": {"revision": "x"}, "query_length": 8, "transformer_task": "any-to-any",
                "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}, "image": {"method": "x"}}}),
            &[
                "`model_args.revision`",
                "`query_length` 8",
                "`transformer_task`",
                "`method_output_name`",
                "`modality_config.image`",
            ],
        ),
        (
            "config_sentence_transformers.json",
            json!({}),
            json!({"precision": "int8", "model_type": "CrossEncoder"}),
            &["`precision` \"int8\"", "`model_type` \"CrossEncoder\""],
        ),
    ] {
        folder.json(file, &after)?;
        let refusal = folder.refusal();
        assert!(names.iter().any(|name| refusal.contains(name)), "{file}: {refusal}");
        assert_eq!(vectors(&folder)?, plain, "{file}");
        let told = warnings(&folder.path().join(file).display().to_string());
        for name in names {
            assert!(told.iter().any(|line| line.contains(name)), "{name} is not in {told:?}");
        }
        folder.json(file, &before)?;
    }
    folder.json("adapter_config.json", &json!({"peft_type": "LORA"}))?;
    random(&mut weights, &mut rng, "linear.bias", &[4], 0., 1.);
    folder.tensors("2_Dense/model.safetensors", &weights)?;
    assert_eq!(vectors(&folder)?, plain);
    let told = warnings(&folder.path().display().to_string());
    for name in ["adapter_config.json: an adapter", "tensor `linear.bias`"] {
        assert!(told.iter().any(|line| line.contains(name)), "{name} is not in {told:?}");
    }
    Ok(())
}
