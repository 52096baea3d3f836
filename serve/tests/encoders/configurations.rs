//! Configurations that are refused by name, forms of one configuration, and architectures of a program's own.

use anyhow::Result;
use candle::{DType, Device, Module};
use opara_serve::batch::Buckets;
use opara_serve::embed::{Architecture, Architectures, EmbedError, Padding, Sizes, TextModel};
use serde_json::{json, Value};

use super::checkpoint::{answers, assert_close, embedder, put, Case};

/// The error of a checkpoint whose configuration has these fields, too.
fn refusal(name: &str, fields: &Value) -> Result<String> {
    let case = Case::read(name)?;
    let folder = case.folder()?;
    let mut config = case.config.clone();
    for (field, value) in fields.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    put(&folder, "config.json", &config)?;
    Ok(TextModel::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default())
}

#[test]
fn what_a_module_does_not_have_is_refused_by_name() -> Result<()> {
    for (name, fields, words) in [
        ("modernbert", json!({"norm_bias": true}), "`norm_bias` (true)"),
        ("modernbert", json!({"hidden_activation": "silu"}), "`hidden_activation`"),
        (
            "modernbert",
            json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}),
            "layer_types",
        ),
        ("modernbert_classifier", json!({"classifier_pooling": "max"}), "classifier_pooling"),
        ("deberta", json!({"conv_kernel_size": 3}), "`conv_kernel_size` (3)"),
        ("deberta", json!({"pos_att_type": ["c2p", "p2p"]}), "pos_att_type"),
        ("nomic", json!({"qkv_proj_bias": true}), "`qkv_proj_bias` (true)"),
        ("nomic", json!({"rotary_scaling_factor": 2}), "`rotary_scaling_factor` (2)"),
        ("qwen3", json!({"use_sliding_window": true}), "use_sliding_window"),
        ("qwen3", json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4}}), "yarn"),
        ("qwen3", json!({"is_causal": false}), "is_causal"),
        ("qwen2", json!({"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}), "say by `is_causal`"),
        ("qwen3", json!({"auto_map": {"AutoModel": "a/b--own.Model", "AutoConfig": null}}), "say by `is_causal`"),
        (
            "qwen3_reranker",
            json!({"auto_map": {"AutoModelForSequenceClassification": "own.Model"}}),
            "say by `is_causal`",
        ),
        ("roberta", json!({"pad_token_id": 60}), "max_position_embeddings"),
        ("roberta", json!({"hidden_act": "silu"}), "hidden_act"),
        ("albert", json!({"num_hidden_groups": 2}), "`num_hidden_groups` (2)"),
        ("jina", json!({"feed_forward_type": "original"}), "feed_forward_type"),
        ("jina", json!({"architectures": ["BertForSequenceClassification"]}), "head that is not known"),
        ("t5", json!({"feed_forward_proj": "gated-tanh"}), "feed_forward_proj"),
        ("t5", json!({"feed_forward_proj": "gelu", "dense_act_fn": "gelu"}), "feed_forward_proj"),
        ("t5", json!({"feed_forward_proj": "swish", "dense_act_fn": "swish"}), "feed_forward_proj"),
        ("t5", json!({"dense_act_fn": "gelu"}), "dense_act_fn"),
        ("t5", json!({"is_gated_act": true}), "is_gated_act"),
        ("t5", json!({"is_decoder": true}), "`is_decoder` (true)"),
        ("t5", json!({"relative_attention_num_buckets": 7}), "relative_attention_num_buckets"),
        ("t5", json!({"relative_attention_max_distance": 2}), "relative_attention_max_distance"),
        ("t5", json!({"architectures": ["T5ForConditionalGeneration"]}), "no vectors of texts"),
        ("t5", json!({"model_type": "umt5"}), "\"umt5\", and only "),
        ("gte", json!({"rope_parameters": {"rope_type": "yarn", "factor": 4}}), "yarn"),
        ("gte", json!({"rope_parameters": {"rope_type": "linear"}}), "rope_parameters.factor"),
        ("gte", json!({"rope_scaling": {"type": "linear", "factor": 2}}), "`rope_scaling`"),
        ("gte", json!({"pack_qkv": false}), "`pack_qkv` (false)"),
        ("gte_new", json!({"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.5}}), "mixed_b"),
        ("gte_new", json!({"rope_scaling": {"type": "ntk", "factor": 0.5}}), "rope_scaling.factor"),
        ("gte_new", json!({"rope_scaling": {"type": "ntk", "factor": 1e6}}), "rope_scaling.factor"),
        ("gte", json!({"rope_parameters": {"rope_type": "linear", "factor": 1e6}}), "rope_parameters.factor"),
        ("gte_new", json!({"rope_scaling": {"type": "ntk"}}), "rope_scaling.factor"),
        ("gte_new", json!({"logn_attention_scale": true}), "`logn_attention_scale` (true)"),
        ("gte_new", json!({"position_embedding_type": "absolute"}), "position_embedding_type"),
        ("gte_new", json!({"layer_norm_type": "rms_norm"}), "layer_norm_type"),
        ("nvembed", json!({"mask_type": "a"}), "`mask_type` (\"a\")"),
        (
            "nvembed",
            json!({"text_config": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4}}),
            "text_config.num_key_value_heads",
        ),
        ("nvembed", json!({"latent_attention_config": {"hidden_dim": 16}}), "latent_attention_config.hidden_dim"),
        (
            "nvembed",
            json!({"latent_attention_config": {
                "hidden_dim": 32, "latent_dim": 32, "num_cross_heads": u32::MAX, "cross_dim_head": u32::MAX,
            }}),
            "latent_attention_config.cross_dim_head",
        ),
        (
            "chinese_clip",
            json!({"text_config": {"position_embedding_type": "relative_key"}}),
            "position_embedding_type",
        ),
        ("chinese_clip", json!({"vision_config": {"hidden_act": "silu"}}), "vision_config.hidden_act"),
        ("bert", json!({"model_type": "mpnet"}), "\"mpnet\", and only albert, bert, "),
        ("bert_classifier", json!({"problem_type": "other"}), "problem_type"),
    ] {
        let error = refusal(name, &fields)?;
        assert!(error.contains(words), "{name} {fields}: {error}");
    }
    Ok(())
}

#[test]
fn code_of_a_checkpoint_says_whether_tokens_see_those_behind_them() -> Result<()> {
    let own = json!({"AutoModel": "modeling_qwen.Qwen2Model"});
    let causal = json!({"AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tokenizer", null]});
    for (map, is_causal, allows) in [
        (&own, json!(true), false),
        (&own, json!(false), false),
        (&own, Value::Null, true),
        (&causal, Value::Null, false),
        (&Value::Null, Value::Null, false),
    ] {
        let case = Case::read("qwen2")?;
        let folder = case.folder()?;
        let mut config = case.config.clone();
        (config["auto_map"], config["is_causal"]) = (map.clone(), is_causal.clone());
        put(&folder, "config.json", &config)?;
        let error = TextModel::open_with(folder.path(), allows).err();
        assert!(error.is_none(), "{map}, {is_causal}: {error:?}");
    }
    Ok(())
}

/// Scaling by NTK is a larger base, and positions that are all divided by one number, which transformers calls linear.
#[test]
fn positions_are_scaled_as_each_form_says() -> Result<()> {
    let case = Case::read("gte_new")?;
    // Heads have 8 elements.
    let linear = json!({"rope_type": "linear", "rope_theta": 2000., "factor": 2f64.powf(2. / 8.)});
    let ntk = json!({"type": "ntk", "factor": 2.});
    for (kind, theta, parameters, scaling) in [
        ("gte", Value::Null, &linear, &Value::Null),
        ("gte", Value::Null, &Value::Null, &linear),
        ("gte", json!(1000.), &linear, &ntk),
        ("new", json!(1000.), &linear, &ntk),
        ("new", json!(1000.), &ntk, &Value::Null),
        ("new", json!(1000.), &json!({}), &ntk),
    ] {
        let folder = case.pooled("mean")?;
        let mut config = case.config.clone();
        (config["model_type"], config["rope_theta"]) = (json!(kind), theta);
        (config["rope_parameters"], config["rope_scaling"]) = (parameters.clone(), scaling.clone());
        put(&folder, "config.json", &config)?;
        let [together, _] = answers(&embedder(folder.path())?, &case.ids, 12)?;
        assert_close(&together[1], &case.expected[1]["mean"], &format!("{kind}: {parameters}, {scaling}"));
    }
    Ok(())
}

#[test]
fn tables_of_positions_that_no_model_has_are_refused() -> Result<()> {
    for name in ["clip", "siglip", "chinese_clip"] {
        for (image, patch, words) in [
            (u32::MAX, 1, "vision_config.image_size"),
            (u32::MAX, u32::MAX, "vision_config.image_size"),
            (16, 32, "vision_config.patch_size"),
        ] {
            let error = refusal(name, &json!({"vision_config": {"image_size": image, "patch_size": patch}}))?;
            assert!(error.contains(words), "{name}, {image}, {patch}: {error}");
        }
        // The largest that is published, and a patch that does not divide the side.
        for (image, patch) in [(896, 14), (378, 14), (224, 15)] {
            let error = refusal(name, &json!({"vision_config": {"image_size": image, "patch_size": patch}}))?;
            assert_eq!(error, "", "{name}, {image}, {patch}");
        }
    }
    let published = json!({"max_position_embeddings": 8192, "rope_scaling": {"type": "ntk", "factor": 8}});
    assert_eq!(refusal("gte_new", &published)?, "");
    Ok(())
}

/// transformers takes the fields of such an object, and defaults for those that it lacks.
#[test]
fn a_second_description_of_a_tower_has_to_say_the_same() -> Result<()> {
    for name in ["clip", "chinese_clip"] {
        let config = Case::read(name)?.config;
        for tower in ["text", "vision"] {
            let (first, second) = (format!("{tower}_config"), format!("{tower}_config_dict"));
            let mut fields = config[&first].clone();
            fields.as_object_mut().into_iter().for_each(|fields| _ = fields.remove("projection_dim"));
            for same in [Value::Null, config[&first].clone(), fields.clone()] {
                assert_eq!(refusal(name, &json!({&second: same}))?, "", "{name}: {second} {same}");
            }
            // Heads, which change no tensor's shape: others, and 8 or 12 by default.
            for heads in [json!(2), Value::Null] {
                fields["num_attention_heads"] = heads.clone();
                let error = refusal(name, &json!({&second: fields}))?;
                assert!(error.contains(&format!("`{second}` ")), "{name}: {second}, {heads}: {error}");
            }
            let error = refusal(name, &json!({&second: {"hidden_act": "relu"}}))?;
            assert!(error.contains(&second), "{name}: {second}, relu: {error}");
        }
        let defaults =
            json!({"text_config": {}, "vision_config": {}, "text_config_dict": {}, "vision_config_dict": {}});
        assert_eq!(refusal(name, &defaults)?, "", "{name}: defaults");
    }
    Ok(())
}

#[test]
fn vocabularies_of_another_form_than_tokenizer_json_are_refused() -> Result<()> {
    for (name, file) in [("chinese_clip", "vocab.txt"), ("mt5", "spiece.model")] {
        let folder = Case::read(name)?.folder()?;
        std::fs::rename(folder.path().join("tokenizer.json"), folder.path().join(file))?;
        let error = TextModel::open(folder.path()).err();
        assert!(matches!(error, Some(EmbedError::NoTokenizer { .. })), "{name}: {error:?}");
    }
    Ok(())
}

#[test]
fn types_that_a_module_does_not_compute_in_are_refused() -> Result<()> {
    for name in ["modernbert", "deberta", "jina", "gte", "nvembed", "chinese_clip"] {
        let folder = Case::read(name)?.folder()?;
        let buckets = Buckets::new([1], [8], 8)?;
        let error = TextModel::open(folder.path())?.embedder(&Device::Cpu, DType::F16, &buckets).err();
        assert!(matches!(error, Some(EmbedError::Dtype { .. })), "{name}: {error:?}");
    }
    Ok(())
}

#[test]
fn a_head_of_another_size_is_refused() -> Result<()> {
    let case = Case::read("bert_classifier")?;
    let folder = case.folder()?;
    let mut config = case.config.clone();
    config["id2label"] = json!({"0": "a", "1": "b"});
    put(&folder, "config.json", &config)?;
    let error = embedder(folder.path()).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("3 numbers, and its configuration names 2"), "{error}");
    Ok(())
}

#[test]
fn a_program_adds_an_architecture() -> Result<()> {
    let case = Case::read("bert")?;
    let folder = case.pooled("mean")?;
    put(&folder, "config.json", &json!({"model_type": "bag", "size": 60}))?;
    let known = Architectures::default().with("bag", |config, _| {
        let vocabulary = config["size"].as_u64().unwrap_or_default() as usize;
        let sizes = Sizes { vocabulary, width: 32, positions: 12, token_types: 1 };
        let architecture = Architecture::new(sizes, move |vb, _| {
            let table = candle_nn::embedding(vocabulary, 32, vb.pp("embeddings.word_embeddings"))?;
            Ok(Box::new(move |tokens| table.forward(tokens.ids)))
        });
        Ok(architecture.without(|name| name != "embeddings.word_embeddings.weight"))
    });
    let model = TextModel::open_by(folder.path(), false, &known)?;
    let vector = &model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1], [12], 12)?)?.embed(&["w7 w9"])?[0];
    let table =
        opara_weights::seeded(7, DType::F32, &Device::Cpu).get((60, 32), "embeddings.word_embeddings.weight")?;
    let expected: Vec<f32> = ((table.get(7)? + table.get(9)?)? / 2.)?.to_vec1()?;
    assert_close(vector, &expected, "the mean of two rows");
    let error = TextModel::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("\"bag\"") && error.contains("Architectures::with"), "{error}");
    Ok(())
}

#[test]
fn a_program_adds_an_architecture_that_pools() -> Result<()> {
    let case = Case::read("bert")?;
    let folder = case.pooled("mean")?;
    put(&folder, "config.json", &json!({"model_type": "bag"}))?;
    let known = Architectures::default().with("bag", |_, _| {
        let sizes = Sizes { vocabulary: 60, width: 32, positions: 12, token_types: 1 };
        let architecture = Architecture::new(sizes, |vb, _| {
            let table = candle_nn::embedding(60, 32, vb.pp("embeddings.word_embeddings"))?;
            Ok(Box::new(move |tokens| table.forward(tokens.ids)?.max(1)))
        });
        Ok(architecture.pooling_itself().padded(Padding::None, 0).without(|_| true))
    });
    let model = TextModel::open_by(folder.path(), false, &known)?;
    assert!(model.is_pooled());
    let vector = &model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1], [12], 12)?)?.embed(&["w7 w9"])?[0];
    let table =
        opara_weights::seeded(7, DType::F32, &Device::Cpu).get((60, 32), "embeddings.word_embeddings.weight")?;
    let expected: Vec<f32> = table.get(7)?.maximum(&table.get(9)?)?.to_vec1()?;
    assert_close(vector, &expected, "the largest of two rows");
    Ok(())
}
