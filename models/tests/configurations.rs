//! Configurations as they are published are read, and what is not known in them is refused by name.

#![recursion_limit = "256"]

use opara_models::{bert, decoder, t5};
use opara_weights::Unread;
use serde_json::{json, Value};

fn with(base: &Value, fields: &Value) -> Value {
    let mut json = base.clone();
    json.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    json
}

/// What transformers writes into every configuration, old versions and new ones.
fn common() -> Value {
    json!({
        "_name_or_path": "org/name", "transformers_version": "4.46.3", "torch_dtype": "bfloat16", "dtype": "bfloat16",
        "use_cache": true, "initializer_range": 0.02, "output_attentions": false, "output_hidden_states": false,
        "return_dict": true, "torchscript": false, "use_bfloat16": false, "tf_legacy_loss": false, "pruned_heads": {},
        "chunk_size_feed_forward": 0, "is_encoder_decoder": false, "is_decoder": false, "cross_attention_hidden_size": null,
        "add_cross_attention": false, "tie_encoder_decoder": false, "max_length": 20, "min_length": 0, "do_sample": false,
        "early_stopping": false, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50,
        "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
        "encoder_no_repeat_ngram_size": 0, "bad_words_ids": null, "num_return_sequences": 1, "output_scores": false,
        "return_dict_in_generate": false, "forced_bos_token_id": null, "forced_eos_token_id": null, "remove_invalid_values": false,
        "exponential_decay_length_penalty": null, "suppress_tokens": null, "begin_suppress_tokens": null, "finetuning_task": null,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "tokenizer_class": null,
        "prefix": null, "bos_token_id": 1, "pad_token_id": 0, "eos_token_id": [2, 3], "sep_token_id": null,
        "decoder_start_token_id": null, "task_specific_params": null, "problem_type": null, "auto_map": {"AutoConfig": "a.b"},
        "_attn_implementation_autoset": true,
    })
}

fn sizes() -> Value {
    json!({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true})
}

/// Decoders, by fields beside [`sizes`].
fn decoders() -> Vec<(&'static str, Value)> {
    let longrope = json!({"type": "longrope", "short_factor": vec![1.; 32], "long_factor": vec![2.5; 32]});
    let gemma = json!({
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "cache_implementation": "hybrid", "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "_sliding_window_pattern": 6, "use_bidirectional_attention": false,
    });
    vec![
        ("llama 1", json!({"model_type": "llama", "architectures": ["LLaMAForCausalLM"], "max_sequence_length": 2048})),
        (
            "llama 2",
            json!({"model_type": "llama", "num_key_value_heads": 8, "pretraining_tp": 1, "rope_scaling": null, "rope_theta": 10000.0,
            "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false}),
        ),
        (
            "llama 3.2",
            json!({"model_type": "llama", "head_dim": 64, "num_key_value_heads": 8, "rope_theta": 500000.0, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
            "unsloth_fixed": true, "unsloth_version": "2025.1"}),
        ),
        ("linear", json!({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}})),
        (
            "smollm2",
            json!({"model_type": "llama", "is_llama_config": true, "rope_interleaved": false, "rope_theta": 130000,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}),
        ),
        (
            "version 5",
            json!({"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "layer_types":
            vec!["full_attention"; 16]}),
        ),
        (
            "mistral",
            json!({"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 4096, "rope_theta": 10000.0}),
        ),
        (
            "mistral 0.3",
            json!({"model_type": "mistral", "head_dim": 128, "sliding_window": null, "attention_dropout": 0.0}),
        ),
        (
            "qwen2.5",
            json!({"model_type": "qwen2", "max_window_layers": 21, "num_key_value_heads": 2, "sliding_window": 131072,
            "use_sliding_window": false, "use_mrope": false}),
        ),
        (
            "qwen3",
            json!({"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "max_window_layers": 28, "num_key_value_heads": 8,
            "sliding_window": null, "use_sliding_window": false, "rope_scaling": null}),
        ),
        ("gemma3", gemma.clone()),
        (
            "gemma3 of 4B",
            json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
            "eoi_token_index": 256000, "image_token_index": 262144, "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152},
            "text_config": with(&with(&sizes(), &gemma), &json!({"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}))}),
        ),
        (
            "phi3",
            json!({"model_type": "phi3", "embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096,
            "rope_scaling": null, "sliding_window": 2047, "attention_bias": false}),
        ),
        (
            "phi3 128k",
            json!({"model_type": "phi3", "original_max_position_embeddings": 4096, "rope_scaling": longrope.clone()}),
        ),
        (
            "phi4 mini",
            json!({"model_type": "phi3", "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": false, "mlp_bias": false,
            "partial_rotary_factor": 1.0, "original_max_position_embeddings": 4096, "rope_scaling": longrope, "sliding_window": 262144}),
        ),
    ]
}

fn bert() -> Value {
    json!({"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": true,
        "vocab_size": 30522, "classifier_dropout": null})
}

fn flan_t5() -> Value {
    json!({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 1024, "d_kv": 64, "d_model": 512,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new",
        "is_gated_act": true, "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-6, "n_positions": 512,
        "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "output_past": true, "pad_token_id": 0,
        "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "use_cache": true,
        "vocab_size": 32128, "classifier_dropout": 0.0, "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}}})
}

#[test]
fn published_configurations_are_read() {
    for (name, fields) in decoders() {
        let sizes = if fields.get("text_config").is_some() { json!({}) } else { sizes() };
        for json in [with(&sizes, &fields), with(&with(&sizes, &common()), &fields)] {
            decoder::Config::from_json(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    for json in [bert(), with(&common(), &bert())] {
        assert_eq!(bert::Config::from_json(&json, Unread::Refuse).expect("a BERT"), bert::Config::base());
        assert_eq!(serde_json::from_value::<bert::Config>(json).expect("a BERT"), bert::Config::base());
    }
    let t5 = with(&common(), &flan_t5());
    assert_eq!(
        t5::Config::from_json(&t5, Unread::Refuse).expect("a T5").feed_forward_proj,
        t5::FeedForwardProj::GatedGelu
    );
    // T5-small of 2019 has neither a projection nor the length of distances.
    let small = json!({"architectures": ["T5WithLMHeadModel"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "dropout_rate": 0.1,
        "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-6, "model_type": "t5", "n_positions": 512,
        "num_heads": 8, "num_layers": 6, "output_past": true, "relative_attention_num_buckets": 32, "vocab_size": 32128,
        "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0});
    let expected = t5::Config { decoder_start_token_id: Some(0), ..t5::Config::small() };
    assert_eq!(t5::Config::from_json(&small, Unread::Refuse).expect("a T5"), expected);
}

/// BERT's configuration as Google released it in 2018.
#[test]
fn berts_first_configuration_is_read() {
    let json = json!({"attention_probs_dropout_prob": 0.1, "directionality": "bidi", "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "type_vocab_size": 2,
        "vocab_size": 30522});
    assert_eq!(bert::Config::from_json(&json, Unread::Refuse).expect("a BERT"), bert::Config::base());
}

#[test]
fn fields_that_are_not_known_are_refused_by_name() {
    let told = |base: &Value, field: &str, value: &Value, parse: &dyn Fn(&Value) -> Option<String>| {
        let error =
            parse(&with(base, &json!({field: value}))).unwrap_or_else(|| panic!("`{field}`: {value} is not refused"));
        assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        let null = parse(&with(base, &json!({field: null})));
        assert_eq!(null, None, "{field}: null is absent");
    };
    let of_decoder = |json: &Value| decoder::Config::from_json(json).err().map(|error| error.to_string());
    let llama = with(&sizes(), &json!({"model_type": "llama"}));
    for (field, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("use_bidirectional_attention", json!(true)),
        ("attention_chunk_size", json!(8192)),
        ("clip_qkv", json!(8.0)),
        ("residual_multiplier", json!(0.22)),
        ("embedding_multiplier", json!(12.0)),
        ("attention_multiplier", json!(0.01)),
        ("logits_scaling", json!(8.0)),
        ("logit_scale", json!(0.0625)),
        ("num_experts", json!(8)),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("rope_interleaved", json!(true)),
        ("is_causal", json!(false)),
        ("is_encoder_decoder", json!(true)),
        ("hidden_activation", json!("gelu")),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("no_rope_layers", json!([1, 1, 1, 0])),
        ("full_attn_mod", json!(2)),
        ("lm_head_bias", json!(true)),
        ("alibi", json!(true)),
        ("qk_layernorm", json!(true)),
        ("mup_width_multiplier", json!(2.0)),
        ("norm_type", json!("layernorm")),
        ("pruned_heads", json!({"1": [2]})),
        ("bad_words_ids", json!([[7]])),
        ("suppress_tokens", json!([7])),
        ("a_field_of_the_next_version", json!(false)),
    ] {
        told(&llama, field, &value, &of_decoder);
    }
    for (field, value) in [
        ("mrope_section", json!([16, 24, 24])),
        ("short_mscale", json!(1.2)),
        ("beta_fast", json!(32.0)),
        ("attention_factor", json!(2.0)),
        ("factor", json!(4.0)),
    ] {
        let scaling = json!({"rope_scaling": {"rope_type": "default", field: value}});
        let error = of_decoder(&with(&llama, &scaling)).unwrap_or_else(|| panic!("`{field}` is not refused"));
        assert!(error.contains(&format!("`rope_scaling.{field}`")), "{error}");
    }
    for kind in ["yarn", "dynamic", "ntk", "proportional", "mrope", "su"] {
        let error =
            of_decoder(&with(&llama, &json!({"rope_scaling": {"rope_type": kind, "factor": 4.0}}))).expect("refused");
        assert!(error.contains(&format!("`{kind}`")), "{error}");
    }
    let of_bert = |json: &Value| bert::Config::from_json(json, Unread::Refuse).err().map(|error| error.to_string());
    for (field, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("hidden_act", json!("silu")),
        ("is_decoder", json!(true)),
        ("add_cross_attention", json!(true)),
        ("embedding_size", json!(128)),
        ("model_type", json!("roberta")),
        ("num_experts", json!(8)),
        ("layer_norm_type", json!("no_norm")),
        ("use_rope", json!(true)),
    ] {
        told(&bert(), field, &value, &of_bert);
    }
    let of_t5 = |json: &Value| t5::Config::from_json(json, Unread::Refuse).err().map(|error| error.to_string());
    for (field, value) in [
        ("dense_act_fn", json!("gelu")),
        ("is_gated_act", json!(false)),
        ("model_type", json!("umt5")),
        ("scale_decoder_outputs", json!(true)),
        ("local_radius", json!(127)),
        ("n_positions", json!(1u64 << 40)),
    ] {
        told(&flan_t5(), field, &value, &of_t5);
    }
    assert!(of_t5(&with(&flan_t5(), &json!({"feed_forward_proj": "gelu"})))
        .is_some_and(|error| error.contains("gated-gelu")));
    assert!(serde_json::from_value::<t5::Config>(with(&flan_t5(), &json!({"local_radius": 127}))).is_err());
    // Whoever knows better is warned.
    let odd = with(&bert(), &json!({"position_embedding_type": "relative_key"}));
    assert_eq!(bert::Config::from_json(&odd, Unread::Warn).expect("a BERT"), bert::Config::base());
}

#[test]
fn quantizations_that_are_not_known_are_refused_in_every_configuration() {
    let quantized = json!({"quantization_config": {"quant_method": "awq", "bits": 4}});
    let errors = [
        decoder::Config::from_json(&with(&with(&sizes(), &json!({"model_type": "llama"})), &quantized))
            .map(drop)
            .unwrap_err()
            .to_string(),
        bert::Config::from_json(&with(&bert(), &quantized), Unread::Refuse).map(drop).unwrap_err().to_string(),
        t5::Config::from_json(&with(&flan_t5(), &quantized), Unread::Refuse).map(drop).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("`quantization_config`") && error.contains("awq"), "{error}");
    }
}

#[test]
fn numbers_that_no_model_has_are_refused() {
    let of = |fields: Value| {
        decoder::Config::from_json(&with(&with(&sizes(), &json!({"model_type": "llama"})), &fields)).map(drop)
    };
    for fields in [
        json!({"num_hidden_layers": 1u64 << 40}),
        json!({"num_hidden_layers": 0}),
        json!({"vocab_size": (1u64 << 32) + 5}),
        json!({"vocab_size": 0}),
        json!({"hidden_size": u64::MAX}),
        json!({"num_attention_heads": 1u64 << 31, "num_key_value_heads": 1u64 << 31, "head_dim": 1u64 << 31}),
        json!({"num_attention_heads": 4096}),
        json!({"num_hidden_layers": 9999, "hidden_size": 1u64 << 31, "head_dim": 64, "intermediate_size": 1u64 << 31}),
        json!({"head_dim": 3}),
        json!({"rms_norm_eps": -1e-5}),
        json!({"rms_norm_eps": 0.0}),
        json!({"rms_norm_eps": 5.0}),
        json!({"rms_norm_eps": 1e-60}),
        json!({"rope_theta": 0.0}),
        json!({"rope_theta": -1e4}),
        json!({"rope_theta": 1e300}),
        json!({"partial_rotary_factor": -0.5}),
        json!({"partial_rotary_factor": 1e30}),
        json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
        json!({"rope_scaling": {"type": "linear", "factor": -2.0}}),
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}),
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 0.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": vec![0.; 32], "long_factor": vec![1.; 32]}}),
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": vec![1.; 32], "long_factor": vec![1.; 32], "attention_factor": -1.0}}),
        json!({"rope_scaling": [1]}),
        json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}),
        json!({"eos_token_id": -1}),
        json!({"text_config": {"model_type": "qwen2"}}),
    ] {
        assert!(of(fields.clone()).is_err(), "{fields}");
    }
    assert!(of(json!({})).is_ok());
    for fields in [json!({"layer_norm_eps": 0.0}), json!({"layer_norm_eps": -1.0}), json!({"num_attention_heads": 0})] {
        assert!(bert::Config::from_json(&with(&bert(), &fields), Unread::Refuse).is_err(), "{fields}");
    }
    assert!(t5::Config::from_json(&with(&flan_t5(), &json!({"layer_norm_epsilon": 2.0})), Unread::Refuse).is_err());
    for json in [json!(null), json!([]), json!("llama"), json!({}), json!({"model_type": 3})] {
        assert!(
            decoder::Config::from_json(&json).is_err() && bert::Config::from_json(&json, Unread::Refuse).is_err(),
            "{json}"
        );
    }
}
