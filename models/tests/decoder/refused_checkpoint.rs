//! What checkpoints have that is not known: it is refused by name, unless it changes nothing.

use opara_models::decoder::{Config, DecoderError};
use opara_weights::{Checkpoint, WeightsError};
use serde_json::json;

use super::made_checkpoint::{checkpoint, load_checkpoint};
use super::{answer, told, Folder, CPU};

#[test]
fn tensors_of_a_checkpoint_that_a_decoder_does_not_read_are_refused() {
    let folder = Folder::new();
    let path = folder.0.path();
    let plain = answer(&load_checkpoint(&checkpoint(path, &[], &[], json!({}))).expect("a model"));
    for name in [
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.k_norm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.mlp.experts.0.w1.weight",
        "mtp.layers.0.input_layernorm.weight",
        "score.weight",
        "vision_tower.patch.weight",
    ] {
        let found = checkpoint(path, &[name], &[], json!({}));
        let error = load_checkpoint(&found).err().unwrap_or_else(|| panic!("{name} is not refused"));
        assert!(matches!(error, DecoderError::Weights(WeightsError::UnreadTensors { .. })), "{error}");
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        assert_eq!(answer(&load_checkpoint(&found.allow_unread(true)).expect("a warning")), plain);
    }
    let buffers = [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "model.embed_tokens.position_ids",
    ];
    assert_eq!(answer(&load_checkpoint(&checkpoint(path, &buffers, &[], json!({}))).expect("buffers")), plain);
}

#[test]
fn a_head_is_there_or_tied_and_a_tied_one_is_the_table() {
    let folder = Folder::new();
    let path = folder.0.path();
    let error = load_checkpoint(&checkpoint(path, &[], &["lm_head.weight"], json!({}))).err().expect("no head");
    assert!(matches!(error, DecoderError::NoHead { .. }), "{error}");
    let told = error.to_string();
    assert!(told.contains("lm_head.weight") && told.contains("`tie_word_embeddings`"), "{told}");
    let tied = json!({"tie_word_embeddings": true});
    let alone =
        answer(&load_checkpoint(&checkpoint(path, &[], &["lm_head.weight"], tied.clone())).expect("a tied head"));
    // A head of other values than the table's is not left out in silence.
    let error = load_checkpoint(&checkpoint(path, &[], &[], tied.clone())).err().expect("two heads").to_string();
    assert!(error.contains("`lm_head.weight`"), "{error}");
    let file = path.join("model.safetensors");
    let mut tensors = candle::safetensors::load(&file, CPU).expect("tensors");
    tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
    candle::safetensors::save(&tensors, &file).expect("it is written");
    let copied = Checkpoint::find(path.to_str().expect("a path of UTF-8")).expect("it is there");
    assert_eq!(answer(&load_checkpoint(&copied).expect("a copy")), alone);
}

#[test]
fn forced_tokens_are_refused() {
    let folder = Folder::new();
    let path = folder.0.path();
    let found = checkpoint(path, &[], &[], json!({}));
    let write = |json: serde_json::Value| {
        std::fs::write(path.join("generation_config.json"), json.to_string()).expect("it is written")
    };
    write(json!({"eos_token_id": [3, 4], "temperature": 0.6, "suppress_tokens": null, "bad_words_ids": []}));
    assert_eq!(Config::of_checkpoint(&found).expect("a configuration").eos, [3, 4]);
    for fields in [
        json!({"suppress_tokens": [7]}),
        json!({"forced_bos_token_id": 1}),
        json!({"force_words_ids": [[1]]}),
        json!({"stop_strings": ["."]}),
        json!({"token_healing": true}),
        json!({"guidance_scale": 1.5}),
        json!({"watermarking_config": {"bias": 2.5}}),
        json!({"something_new": 1}),
    ] {
        write(fields.clone());
        let name = fields.as_object().and_then(|fields| fields.keys().next()).expect("a field");
        assert!(told(Config::of_checkpoint(&found)).contains(&format!("`{name}`")), "{fields}");
        Config::of_checkpoint(&found.clone().allow_unread(true)).expect("a warning");
    }
    // As models have it.
    write(
        json!({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [5], "pad_token_id": 0, "do_sample": true, "top_k": 20,
        "top_p": 0.8, "min_p": 0.0, "repetition_penalty": 1.05, "max_length": 4096, "max_new_tokens": 64, "num_beams": 1,
        "cache_implementation": "hybrid", "transformers_version": "4.51.0", "guidance_scale": 1.0, "token_healing": false,
        "stop_strings": null, "trust_remote_code": true, "chat_format": "chatml", "max_window_size": 6144}),
    );
    assert_eq!(Config::of_checkpoint(&found).expect("a configuration").eos, [5]);
}

#[test]
fn a_text_ends_where_transformers_ends_it_if_no_file_says_so() {
    let folder = Folder::new();
    let end =
        |fields| Config::of_checkpoint(&checkpoint(folder.0.path(), &[], &[], fields)).expect("a configuration").eos;
    assert_eq!(end(json!({})), [2]);
    assert_eq!(end(json!({"model_type": "mistral"})), [2]);
    assert_eq!(end(json!({"model_type": "qwen2"})), [0u32; 0]);
    assert_eq!(end(json!({"eos_token_id": null})), [0u32; 0]);
    assert_eq!(end(json!({"eos_token_id": [7, 8]})), [7, 8]);
    // One that the vocabulary does not have would end nothing.
    assert_eq!(end(json!({"model_type": "phi3"})), [0u32; 0]);
    let far = checkpoint(folder.0.path(), &[], &[], json!({"eos_token_id": [7, 96]}));
    let refused = told(Config::of_checkpoint(&far));
    assert!(refused.contains("`eos_token_id` names token 96, and the vocabulary has 96"), "{refused}");
    assert_eq!(Config::of_checkpoint(&far.allow_unread(true)).expect("a warning").eos, [7, 96]);
    let phi = Config::of_checkpoint(&checkpoint(
        folder.0.path(),
        &[],
        &[],
        json!({"model_type": "phi3", "vocab_size": 32_064}),
    ))
    .expect("a configuration");
    assert_eq!((phi.eos, phi.eps), (vec![32_000], 1e-5));
}

#[test]
fn an_adapter_beside_the_weights_is_refused() {
    let folder = Folder::new();
    let path = folder.0.path();
    let found = checkpoint(path, &[], &[], json!({}));
    let plain = answer(&load_checkpoint(&found).expect("a model"));
    std::fs::write(path.join("adapter_config.json"), "{}").expect("it is written");
    let told = told(load_checkpoint(&found));
    assert!(told.contains("adapter_config.json") && told.contains("merge it into the weights"), "{told}");
    assert_eq!(answer(&load_checkpoint(&found.allow_unread(true)).expect("a warning")), plain);
}
