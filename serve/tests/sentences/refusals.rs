//! Parts of folders that are not supported, each refused by its name.

use anyhow::Result;
use serde_json::{json, Value};

use super::folder::{config, list, random, Folder, Weights, DENSE, NORMALIZE, POOLING, TRANSFORMER, WIDTH};

/// A folder in which this file has these contents is refused with these words.
fn refused(folder: &Folder, file: &str, value: &Value, words: &[&str]) -> Result<()> {
    let before = std::fs::read(folder.path().join(file)).ok();
    folder.json(file, value)?;
    let message = folder.refusal();
    for word in words {
        assert!(message.contains(word), "{file}: {value}: {word} is not in {message:?}");
    }
    match before {
        Some(bytes) => std::fs::write(folder.path().join(file), bytes)?,
        None => std::fs::remove_file(folder.path().join(file))?,
    }
    Ok(())
}

#[test]
fn lists_of_modules() -> Result<()> {
    let folder = Folder::pooled()?;
    let of = |modules: &[(&str, &str)]| list(modules);
    for class in [
        "sentence_transformers.models.CNN",
        "sentence_transformers.models.WeightedLayerPooling",
        "sentence_transformers.models.LSTM",
        "sentence_transformers.models.WordWeights",
        "sentence_transformers.base.modules.router.Router",
        "sentence_transformers.sparse_encoder.models.SpladePooling",
        "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
        "sentence_transformers.multi_vector_encoder.modules.Normalize",
        "pylate.models.Dense.Dense",
        "custom_st.Pooling",
        "Pooling",
    ] {
        let words = ["modules.json", class, "is not supported"];
        refused(&folder, "modules.json", &of(&[TRANSFORMER, POOLING, (class, "2_x")]), &words)?;
        refused(&folder, "modules.json", &of(&[TRANSFORMER, (class, "1_x"), POOLING]), &words)?;
    }
    for class in
        ["sentence_transformers.models.StaticEmbedding", "sentence_transformers.models.BERT", "custom_st.Transformer"]
    {
        refused(&folder, "modules.json", &of(&[(class, ""), POOLING]), &[class, "is not supported"])?;
    }
    let twice = json!([
        {"idx": 0, "name": "0", "path": "", "type": TRANSFORMER.0}, {"idx": 1, "name": "0", "path": "1_Pooling", "type": POOLING.0},
    ]);
    let kwargs = json!([
        {"idx": 0, "name": "0", "path": "", "type": TRANSFORMER.0, "kwargs": ["task"]},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": POOLING.0},
    ]);
    for (value, words) in [
        (json!([]), &["no modules"][..]),
        (of(&[TRANSFORMER]), &["no Pooling"]),
        (of(&[POOLING]), &["first module is Pooling"]),
        (of(&[TRANSFORMER, NORMALIZE, POOLING]), &["Normalize stands before a Pooling"]),
        (of(&[TRANSFORMER, POOLING, ("sentence_transformers.models.Pooling", "1_Pooling")]), &["second", "Pooling"]),
        (of(&[TRANSFORMER, (POOLING.0, "../1_Pooling")]), &["../1_Pooling", "not within"]),
        (of(&[TRANSFORMER, (POOLING.0, "/etc")]), &["/etc", "not within"]),
        (of(&[TRANSFORMER, (POOLING.0, "9_Pooling")]), &["9_Pooling/config.json", "missing"]),
        (twice, &["two modules", "\"0\""]),
        (kwargs, &["`kwargs`", "task"]),
        (json!([{"idx": 0, "name": "0", "path": ""}]), &["`type` is missing"]),
        (json!({"0": "Transformer"}), &["modules.json"]),
    ] {
        refused(&folder, "modules.json", &value, words)?;
    }
    Ok(())
}

#[test]
fn poolings() -> Result<()> {
    let folder = Folder::pooled()?;
    for (value, words) in [
        (json!({"pooling_mode": "attention"}), &["`pooling_mode` \"attention\"", "weightedmean"][..]),
        (json!({"pooling_mode": ["cls", "median"]}), &["\"median\""]),
        (json!({"pooling_mode": []}), &["names no mode"]),
        (json!({"pooling_mode": 3}), &["`pooling_mode`", "list of names"]),
        (json!({"pooling_mode_median_tokens": true}), &["`pooling_mode_median_tokens` true", "not supported"]),
        (json!({"word_embedding_dimension": 12}), &["`word_embedding_dimension` is 12", "16"]),
        (json!({"pooling_mode_cls_token": "yes"}), &["`pooling_mode_cls_token`"]),
    ] {
        refused(&folder, "1_Pooling/config.json", &value, words)?;
    }
    Ok(())
}

#[test]
fn dense_modules() -> Result<()> {
    let folder = Folder::of(&[TRANSFORMER, POOLING, DENSE], &json!({"pooling_mode": "mean"}))?;
    let mut weights = Weights::new();
    random(&mut weights, &mut fastrand::Rng::with_seed(1), "linear.weight", &[4, WIDTH], 0., 1.);
    random(&mut weights, &mut fastrand::Rng::with_seed(2), "linear.bias", &[4], 0., 1.);
    folder.tensors("2_Dense/model.safetensors", &weights)?;
    let with = |name: &str, value: Value| {
        let mut config = json!({"in_features": WIDTH, "out_features": 4});
        config[name] = value;
        config
    };
    folder.json("2_Dense/config.json", &with("bias", json!(true)))?;
    assert_eq!(folder.refusal(), "it is served");
    for (value, words) in [
        (
            with("activation_function", json!("torch.nn.modules.activation.Softplus")),
            &["activation.Softplus", "Tanh, ReLU"][..],
        ),
        (with("activation_function", json!("custom.Tanh")), &["custom.Tanh"]),
        (with("activation_function", json!("Tanh")), &["\"Tanh\""]),
        (with("module_input_name", json!("token_embeddings")), &["`module_input_name` \"token_embeddings\""]),
        (with("module_output_name", json!("scores")), &["`module_output_name` \"scores\""]),
        (with("scale", json!(2)), &["`scale` 2", "not supported"]),
        (with("in_features", json!(8)), &["`in_features` is 8", "16"]),
        (with("out_features", json!(5)), &["linear.bias", "[4]"]),
        (with("out_features", json!(0)), &["`out_features` is 0"]),
        (with("bias", json!(false)), &["tensor `linear.bias`", "not supported"]),
    ] {
        refused(&folder, "2_Dense/config.json", &value, words)?;
    }
    folder.remove("2_Dense/model.safetensors")?;
    assert!(folder.refusal().contains("model.safetensors or pytorch_model.bin"), "{}", folder.refusal());
    Ok(())
}

#[test]
fn settings_of_the_transformer_and_of_the_folder() -> Result<()> {
    let folder = Folder::pooled()?;
    let modality = |method: &str, output: Value| json!({"modality_config": {"text": {"method": method, "method_output_name": output}}, "module_output_name": "token_embeddings"});
    for (value, words) in [
        (json!({"transformer_task": "any-to-any"}), &["`transformer_task` \"any-to-any\""][..]),
        (json!({"transformer_task": "fill-mask"}), &["head that is not known"]),
        (json!({"transformer_task": "sequence-classification"}), &["head that is not known"]),
        (json!({"module_output_name": "sentence_embedding"}), &["`module_output_name`"]),
        (
            modality("get_text_features", json!("last_hidden_state")),
            &["`modality_config.text.method` \"get_text_features\""],
        ),
        (modality("forward", json!("pooler_output")), &["`method_output_name` \"pooler_output\""]),
        (modality("forward", json!(["hidden_states", -2])), &["`method_output_name`", "-2"]),
        (
            json!({"modality_config": {"image": {"method": "forward", "method_output_name": "x"}}}),
            &["`modality_config.image`"],
        ),
        (json!({"model_args": {"revision": "x"}}), &["`model_args.revision`"]),
        (json!({"config_args": {"num_hidden_layers": 1}}), &["`config_args.num_hidden_layers` 1"]),
        (json!({"tokenizer_args": {"do_lower_case": true}}), &["`tokenizer_args.do_lower_case` true"]),
        (json!({"processing_kwargs": {"text": {"max_length": 4}}}), &["`processing_kwargs`"]),
        (json!({"query_length": 8}), &["`query_length` 8"]),
        (json!({"query_expansion": {"length": 32}}), &["`query_expansion`"]),
        (json!({"something_new": 1}), &["`something_new` 1"]),
        (json!({"max_seq_length": 0}), &["0 tokens"]),
    ] {
        refused(&folder, "sentence_bert_config.json", &value, words)?;
    }
    for (value, words) in [
        (json!({"model_type": "CrossEncoder"}), &["`model_type` \"CrossEncoder\""][..]),
        (json!({"model_type": "SparseEncoder"}), &["`model_type` \"SparseEncoder\""]),
        (json!({"default_prompt_name": "passage"}), &["`default_prompt_name`", "\"passage\""]),
        (json!({"prompts": {"query": 3}}), &["`prompts.query`"]),
        (json!({"truncate_dim": 0}), &["`truncate_dim` is 0"]),
        (json!({"truncate_dim": -1}), &["`truncate_dim`"]),
        (json!({"precision": "int8"}), &["`precision` \"int8\""]),
    ] {
        refused(&folder, "config_sentence_transformers.json", &value, words)?;
    }
    refused(
        &folder,
        "tokenizer_config.json",
        &json!({"truncation_side": "middle"}),
        &["`truncation_side` \"middle\""],
    )?;
    refused(&folder, "adapter_config.json", &json!({"peft_type": "LORA"}), &["adapter_config.json", "merge"])?;
    let harmless = json!({"max_seq_length": 32, "unpad_inputs": true, "model_args": {"torch_dtype": "float16"}, "query_length": null});
    folder.json("sentence_bert_config.json", &harmless)?;
    assert_eq!(folder.refusal(), "it is served");
    Ok(())
}

#[test]
fn models_with_another_head() -> Result<()> {
    let folder = Folder::plain()?;
    let of = |architecture: &str| {
        let mut config = config();
        config["architectures"] = json!([architecture]);
        config
    };
    for name in ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForNextSentencePrediction"] {
        folder.json("config.json", &of(name))?;
        assert_eq!(folder.refusal(), "it is served", "{name}");
    }
    refused(&folder, "config.json", &of("BertForSequenceClassification"), &["bert.pooler.dense.weight"])?;
    for name in ["BertForTokenClassification", "BertForQuestionAnswering", "BertLMHeadModel", "MyBert"] {
        refused(&folder, "config.json", &of(name), &[name, "no vectors"])?;
    }
    folder.json("config.json", &config())?;
    folder.json("2_Dense/config.json", &json!({}))?;
    assert!(folder.refusal().contains("2_Dense: a module without modules.json"), "{}", folder.refusal());
    Ok(())
}

#[test]
fn tokens_that_the_model_does_not_have() -> Result<()> {
    let mut small = config();
    small["vocab_size"] = 23.into();
    refused(&Folder::pooled()?, "config.json", &small, &["tokenizer.json", "`é` is token 23, and the model has 23"])
}

#[test]
fn a_list_of_modules_makes_no_decoder() -> Result<()> {
    let folder = Folder::pooled()?;
    let mut other = config();
    other["model_type"] = "qwen3_moe".into();
    refused(&folder, "config.json", &other, &["\"qwen3_moe\"", "bert", "modernbert", "Architectures::with"])
}
