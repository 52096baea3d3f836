//! Checkpoints that write texts or name each token: a list of modules takes their encoders.

use std::collections::HashMap;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_serve::embed::{is_encoder, Architectures, TextModel};
use serde_json::{json, Value};

use super::checkpoint::{answers, assert_close, embedder, put, Case};

#[test]
fn decoders_are_no_encoders_unless_a_list_of_modules_says_so() -> Result<()> {
    let known = Architectures::default();
    let config = |kind: &str, architecture: Option<&str>| match architecture {
        Some(name) => json!({"model_type": kind, "architectures": [name]}),
        None => json!({"model_type": kind}),
    };
    for (kind, architecture, expected) in [
        ("qwen3", Some("Qwen3ForCausalLM"), false),
        ("qwen3", Some("Qwen3Model"), true),
        ("qwen3", Some("Qwen3ForSequenceClassification"), true),
        ("llama", Some("LlamaForCausalLM"), false),
        ("llama", Some("LlamaModel"), false),
        ("roberta", None, true),
    ] {
        assert_eq!(is_encoder(&config(kind, architecture), &known), expected, "{kind} {architecture:?}");
    }
    let case = Case::read("qwen3")?;
    assert!(!is_encoder(
        &{
            let mut config = case.config.clone();
            config["architectures"] = Value::Null;
            config
        },
        &known
    ));
    let folder = case.pooled("lasttoken")?;
    let mut config = case.config.clone();
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    put(&folder, "config.json", &config)?;
    let [together, _] = answers(&embedder(folder.path())?, &case.ids, 12)?;
    assert_close(&together[1], &case.expected[1]["last"], "a decoder as an encoder");
    Ok(())
}

#[test]
fn a_list_of_modules_takes_the_encoder_of_a_model_with_other_answers() -> Result<()> {
    for (name, architecture, others) in [
        (
            "t5",
            "T5ForConditionalGeneration",
            &["decoder.final_layer_norm.weight", "lm_head.weight", "encoder.embed_tokens.weight"][..],
        ),
        ("gte_new", "NewForTokenClassification", &["classifier.weight", "classifier.bias"]),
        ("bert", "BertForTokenClassification", &["classifier.weight"]),
        ("roberta", "RobertaForTokenClassification", &["classifier.weight"]),
        ("xlm_roberta", "XLMRobertaForTokenClassification", &["classifier.weight"]),
        ("camembert", "CamembertForTokenClassification", &["classifier.weight"]),
        ("distilbert", "DistilBertForTokenClassification", &["classifier.weight"]),
        ("electra", "ElectraForTokenClassification", &["classifier.weight"]),
        ("albert", "AlbertForTokenClassification", &["classifier.weight"]),
        ("jina", "JinaBertForTokenClassification", &["classifier.weight"]),
        ("nomic", "NomicBertForTokenClassification", &["classifier.weight"]),
        ("modernbert", "ModernBertForTokenClassification", &["head.dense.weight", "classifier.weight"]),
        ("deberta", "DebertaV2ForTokenClassification", &["classifier.weight"]),
        ("qwen2", "Qwen2ForTokenClassification", &["score.weight", "score.bias"]),
        ("qwen3", "Qwen3ForTokenClassification", &["score.weight", "score.bias"]),
    ] {
        let case = Case::read(name)?;
        let folder = case.pooled("mean")?;
        let mut config = case.config.clone();
        config["architectures"] = json!([architecture]);
        config["is_encoder_decoder"] = json!(name == "t5");
        put(&folder, "config.json", &config)?;
        let path = folder.path().join("model.safetensors");
        let mut tensors = candle::safetensors::load(&path, &Device::Cpu)?;
        for other in others {
            tensors.insert((*other).to_owned(), Tensor::zeros(32, DType::F32, &Device::Cpu)?);
        }
        candle::safetensors::save(&tensors, &path)?;
        let [together, _] = answers(&embedder(folder.path())?, &case.ids, 12)?;
        assert_close(&together[1], &case.expected[1]["mean"], architecture);
        std::fs::remove_file(folder.path().join("modules.json"))?;
        let error = TextModel::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("no vectors of texts"), "{architecture}: {error}");
    }
    Ok(())
}

/// transformers calls T5's encoder `transformer` there.
#[test]
fn an_encoder_of_t5_that_names_each_token_has_a_prefix() -> Result<()> {
    let case = Case::read("t5")?;
    let folder = case.pooled("mean")?;
    let mut config = case.config.clone();
    config["architectures"] = json!(["T5ForTokenClassification"]);
    put(&folder, "config.json", &config)?;
    let path = folder.path().join("model.safetensors");
    let tensors = candle::safetensors::load(&path, &Device::Cpu)?;
    let mut tensors: HashMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (format!("transformer.{name}"), tensor)).collect();
    tensors.insert("classifier.weight".to_owned(), Tensor::zeros(32, DType::F32, &Device::Cpu)?);
    // The table has two names in some files.
    let table = tensors["transformer.shared.weight"].copy()?;
    tensors.insert("transformer.encoder.embed_tokens.weight".to_owned(), table);
    candle::safetensors::save(&tensors, &path)?;
    let [together, _] = answers(&embedder(folder.path())?, &case.ids, 12)?;
    assert_close(&together[1], &case.expected[1]["mean"], "the mean");
    Ok(())
}

#[test]
fn a_classifier_beside_an_encoder_of_another_name_is_refused() -> Result<()> {
    let folder = Case::read("roberta")?.pooled("mean")?;
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle::safetensors::load(&path, &Device::Cpu)?;
    tensors.insert("classifier.weight".to_owned(), Tensor::zeros(32, DType::F32, &Device::Cpu)?);
    candle::safetensors::save(&tensors, &path)?;
    let error = embedder(folder.path()).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("classifier.weight"), "{error}");
    Ok(())
}
