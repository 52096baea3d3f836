//! What GGUF files and checkpoints say that is not known: it is refused by name, unless it changes nothing.

use std::path::{Path, PathBuf};

use opara_models::decoder::{DecoderError, GgufFile};
use opara_weights::{Checkpoint, WeightsError};
use serde_json::json;

use super::*;

/// A value of a GGUF file.
#[derive(Clone)]
enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Counts(Vec<u32>),
}

use Meta::{Bool, Counts, Text, F32, U32};

/// A tensor of a GGUF file: name, dimensions as in the file, type, bytes.
type Stored = (String, Vec<u64>, u32, Vec<u8>);

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn encode(metadata: &[(String, Meta)], tensors: &[Stored]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut bytes, key);
        match value {
            U32(number) => bytes.extend([4u32.to_le_bytes(), number.to_le_bytes()].concat()),
            F32(number) => bytes.extend([6u32.to_le_bytes(), number.to_le_bytes()].concat()),
            Bool(flag) => bytes.extend([&7u32.to_le_bytes()[..], &[u8::from(*flag)]].concat()),
            Text(value) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, value);
            }
            Counts(numbers) => {
                bytes.extend([9u32.to_le_bytes(), 4u32.to_le_bytes()].concat());
                bytes.extend((numbers.len() as u64).to_le_bytes());
                numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
    }
    let mut offset = 0;
    for (name, dims, kind, data) in tensors {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += data.len().next_multiple_of(32);
    }
    for (.., data) in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
    }
    bytes
}

fn floats(name: &str, dims: &[u64]) -> Stored {
    let count: u64 = dims.iter().product();
    let data = (0..count).flat_map(|at| (0.01 * (at % 17) as f32 - 0.05).to_le_bytes()).collect();
    (name.into(), dims.to_vec(), 0, data)
}

/// A small model: its metadata and its tensors.
fn model(architecture: &str) -> (Vec<(String, Meta)>, Vec<Stored>) {
    let key = |name: &str| format!("{architecture}.{name}");
    let name: &'static str = if architecture == "llama" { "llama" } else { "gemma3" };
    let metadata = vec![
        ("general.architecture".into(), Text(name)),
        (key("embedding_length"), U32(16)),
        (key("feed_forward_length"), U32(24)),
        (key("block_count"), U32(2)),
        (key("attention.head_count"), U32(4)),
        (key("attention.head_count_kv"), U32(2)),
        (key("attention.layer_norm_rms_epsilon"), F32(1e-5)),
        (key("context_length"), U32(64)),
    ];
    let mut tensors = vec![floats("token_embd.weight", &[16, 40]), floats("output_norm.weight", &[16])];
    for at in 0..2 {
        for (part, dims) in [
            ("attn_norm", &[16][..]),
            ("ffn_norm", &[16]),
            ("attn_q", &[16, 16]),
            ("attn_k", &[16, 8]),
            ("attn_v", &[16, 8]),
            ("attn_output", &[16, 16]),
            ("ffn_gate", &[16, 24]),
            ("ffn_up", &[16, 24]),
            ("ffn_down", &[24, 16]),
        ] {
            tensors.push(floats(&format!("blk.{at}.{part}.weight"), dims));
        }
        if architecture == "gemma3" {
            for part in ["attn_q_norm", "attn_k_norm"] {
                tensors.push(floats(&format!("blk.{at}.{part}.weight"), &[4]));
            }
            for part in ["post_attention_norm", "post_ffw_norm"] {
                tensors.push(floats(&format!("blk.{at}.{part}.weight"), &[16]));
            }
        }
    }
    (metadata, tensors)
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

fn open(file: impl Into<GgufFile>) -> opara_models::decoder::Result<Decoder> {
    Decoder::load_gguf(file, DType::F32, CPU, 1, 16)
}

/// Logits of a few tokens.
fn answer(model: &Decoder) -> Vec<f32> {
    let ids = Tensor::new(&[[1u32, 7, 30, 2, 9]], CPU).expect("tokens");
    let given = logits(model, &ids, &[5]).expect("logits");
    given.flatten_all().and_then(|logits| logits.to_vec1()).expect("floats")
}

#[test]
fn keys_of_a_gguf_file_that_are_not_known_are_refused() {
    let folder = Folder::new();
    let with = |architecture: &str, key: &str, value: Meta| {
        let (mut metadata, tensors) = model(architecture);
        metadata.push((key.into(), value));
        folder.write("model.gguf", &encode(&metadata, &tensors))
    };
    let (metadata, tensors) = model("llama");
    let plain = answer(&open(folder.write("plain.gguf", &encode(&metadata, &tensors))).expect("a model"));
    for (key, value) in [
        ("llama.expert_count", U32(8)),
        ("llama.expert_used_count", U32(2)),
        ("llama.attn_logit_softcapping", F32(50.)),
        ("llama.final_logit_softcapping", F32(30.)),
        ("llama.attention.sliding_window", U32(8)),
        ("llama.attention.causal", Bool(false)),
        ("llama.attention.scale", F32(0.5)),
        ("llama.attention.clamp_kqv", F32(8.)),
        ("llama.residual_scale", F32(0.22)),
        ("llama.logit_scale", F32(8.)),
        ("llama.rope.scaling.yarn_log_multiplier", F32(0.1)),
        ("llama.rope.scaling.attn_factor", F32(2.)),
        ("llama.rope.dimension_sections", Counts(vec![1, 1, 0, 0])),
        ("llama.pooling_type", U32(1)),
        ("llama.a_key_of_the_next_version", U32(0)),
        ("adapter.type", Text("lora")),
        ("general.type", Text("adapter")),
        ("tokenizer.ggml.suppress_tokens", Counts(vec![3])),
    ] {
        let path = with("llama", key, value);
        let told = told(Config::of_gguf(&path));
        assert!(told.contains(&format!("`{key}`")) && told.contains("--allow-unread"), "{told}");
        assert!(matches!(open(&path), Err(DecoderError::UnreadGguf { .. })), "{key}");
        let model = open(GgufFile::from(&path).allow_unread(true)).expect("a warning");
        assert_eq!(answer(&model), plain, "{key}");
    }
    for (key, value) in [
        ("llama.expert_count", U32(0)),
        ("llama.attention.sliding_window", U32(64)),
        ("llama.attention.causal", Bool(true)),
        ("llama.attention.value_length", U32(4)),
        ("llama.vocab_size", U32(40)),
        ("llama.rope.dimension_count", U32(4)),
        ("llama.rope.scaling.type", Text("none")),
        ("llama.rope.scaling.factor", F32(1.)),
        ("llama.attention.key_length", Counts(vec![4, 4])),
        ("general.file_type", U32(0)),
        ("general.type", Text("model")),
        ("quantize.imatrix.entries_count", U32(3)),
        ("someone.built_by", Text("them")),
    ] {
        assert_eq!(
            answer(&open(with("llama", key, value)).unwrap_or_else(|error| panic!("{key}: {error}"))),
            plain,
            "{key}"
        );
    }
    let (mut metadata, tensors) = model("llama");
    metadata.retain(|(key, _)| key != "general.architecture");
    metadata.push(("general.architecture".into(), Text("mistral")));
    let mistral = told(open(folder.write("mistral.gguf", &encode(&metadata, &tensors))));
    assert!(mistral.contains("`general.architecture` is `mistral`"), "{mistral}");
    // llama.cpp divides by the factor where no type is given.
    let scaled = |typed: Option<&'static str>| {
        let (mut metadata, tensors) = model("llama");
        metadata.push(("llama.rope.scaling.factor".into(), F32(4.)));
        metadata.extend(typed.map(|kind| ("llama.rope.scaling.type".to_owned(), Text(kind))));
        Config::of_gguf(folder.write("scaled.gguf", &encode(&metadata, &tensors)))
    };
    let linear = opara_models::decoder::Scaling::Linear(4.);
    assert_eq!(scaled(None).expect("a model").rotaries[0].scaling, linear);
    assert_eq!(scaled(Some("linear")).expect("a model").rotaries[0].scaling, linear);
    assert!(told(scaled(Some("yarn"))).contains("`yarn`"));
}

#[test]
fn values_of_a_gguf_file_that_no_model_has_are_refused() {
    let folder = Folder::new();
    let refused = |key: &str, value: Meta| {
        let (mut metadata, tensors) = model("llama");
        let key = format!("llama.{key}");
        metadata.retain(|(other, _)| *other != key);
        metadata.push((key.clone(), value));
        let error = Config::of_gguf(folder.write("model.gguf", &encode(&metadata, &tensors)));
        assert!(error.is_err(), "{key} is accepted");
    };
    for (key, value) in [
        ("block_count", U32(u32::MAX)),
        ("block_count", U32(0)),
        ("block_count", Text("two")),
        ("attention.head_count", Counts(vec![4, 2])),
        ("attention.head_count_kv", Counts(vec![2, 1])),
        ("attention.head_count", U32(0)),
        ("attention.head_count", U32(64)),
        ("attention.head_count_kv", U32(0)),
        ("attention.key_length", U32(u32::MAX)),
        ("attention.value_length", U32(8)),
        ("attention.layer_norm_rms_epsilon", F32(-1e-5)),
        ("attention.layer_norm_rms_epsilon", F32(f32::NAN)),
        ("attention.layer_norm_rms_epsilon", F32(10.)),
        ("rope.freq_base", F32(f32::NAN)),
        ("rope.freq_base", F32(0.)),
        ("rope.freq_base", F32(f32::INFINITY)),
        ("rope.freq_base", Text("10000")),
        ("rope.scaling.factor", F32(-2.)),
        ("rope.scaling.factor", F32(f32::NAN)),
        ("rope.scaling.factor", F32(f32::INFINITY)),
        ("rope.dimension_count", U32(3)),
        ("rope.dimension_count", U32(0)),
        ("context_length", U32(0)),
    ] {
        refused(key, value);
    }
    let without_dims = |dims: &[u64]| {
        let (metadata, mut tensors) = model("llama");
        tensors[0].1 = dims.to_vec();
        told(open(folder.write("model.gguf", &encode(&metadata, &tensors))))
    };
    for dims in [&[][..], &[0, 40], &[16, 0], &[1 << 40, 1 << 40], &[16, (1 << 32) + 40], &[1, 1, 1, 1, 1], &[640]] {
        let told = without_dims(dims);
        assert!(told.contains("token_embd.weight") || told.contains("cut short"), "{dims:?}: {told}");
    }
    for alignment in [0, 1 << 30, 48] {
        let (mut metadata, tensors) = model("llama");
        metadata.push(("general.alignment".into(), U32(alignment)));
        assert!(told(open(folder.write("model.gguf", &encode(&metadata, &tensors)))).contains("general.alignment"));
    }
    let (mut metadata, mut tensors) = model("llama");
    metadata.push(metadata[1].clone());
    assert!(told(open(folder.write("model.gguf", &encode(&metadata, &tensors)))).contains("there twice"));
    metadata.pop();
    tensors.push(tensors[0].clone());
    assert!(told(open(folder.write("model.gguf", &encode(&metadata, &tensors)))).contains("there twice"));
}

#[test]
fn tensors_that_a_decoder_does_not_read_are_refused() {
    let folder = Folder::new();
    for name in
        ["blk.0.attn_q.lora_a", "blk.1.attn_k.bias", "blk.2.attn_q.weight", "cls.weight", "rope_factors_short.weight"]
    {
        let (metadata, mut tensors) = model("llama");
        let plain = answer(&open(folder.write("plain.gguf", &encode(&metadata, &tensors))).expect("a model"));
        tensors.push(floats(name, &[8]));
        let path = folder.write("model.gguf", &encode(&metadata, &tensors));
        let told = told(open(&path));
        assert!(told.contains(&format!("tensor `{name}`")), "{told}");
        assert_eq!(answer(&open(GgufFile::from(&path).allow_unread(true)).expect("a warning")), plain);
    }
    let (metadata, mut tensors) = model("gemma3");
    tensors.extend([floats("v.patch_embd.weight", &[8]), floats("mm.input_projection.weight", &[8])]);
    open(folder.write("gemma.gguf", &encode(&metadata, &tensors))).expect("pictures do not change a text");
}

#[test]
fn types_that_are_not_read_are_named() {
    let folder = Folder::new();
    for (kind, name) in [(23, "IQ4_XS"), (20, "IQ4_NL"), (39, "MXFP4"), (34, "TQ1_0"), (28, "F64"), (99, "number 99")] {
        let (metadata, mut tensors) = model("llama");
        tensors[3].2 = kind;
        let error = open(folder.write("model.gguf", &encode(&metadata, &tensors))).err().expect("refused");
        assert!(matches!(&error, DecoderError::GgufType { kind: found, .. } if *found == kind), "{error}");
        let told = error.to_string();
        assert!(told.contains(name) && told.contains(&tensors[3].0) && told.contains("Q4_K"), "{told}");
    }
}

#[test]
fn a_split_model_is_read_from_all_of_its_files() {
    let folder = Folder::new();
    let (metadata, tensors) = model("llama");
    let whole = answer(&open(folder.write("whole.gguf", &encode(&metadata, &tensors))).expect("a model"));
    let split = |at: u32, count: u32, total: u32| {
        [("split.no", at), ("split.count", count), ("split.tensors.count", total)]
            .map(|(key, number)| (key.to_owned(), U32(number)))
    };
    let total = tensors.len() as u32;
    let write = |at: usize, tensors: &[Stored], total: u32| {
        let mut keys = split(at as u32, 3, total).to_vec();
        if at == 0 {
            keys.extend(metadata.clone());
        }
        folder.write(&format!("m-{:05}-of-00003.gguf", at + 1), &encode(&keys, tensors))
    };
    let first = write(0, &tensors[..5], total);
    write(1, &tensors[5..9], total);
    assert!(matches!(open(&first), Err(DecoderError::Read { path, .. }) if path.ends_with("m-00003-of-00003.gguf")));
    let last = write(2, &tensors[9..], total);
    assert_eq!(answer(&open(&first).expect("a model")), whole);
    assert!(told(open(&last)).contains("split.no"));
    let renamed = folder.write("renamed.gguf", &std::fs::read(&first).expect("it is there"));
    assert!(told(open(&renamed)).contains("`split.count`"));
    write(2, &tensors[9..12], total);
    assert!(told(open(&first)).contains("split.tensors.count"));
    write(2, &tensors[8..], total);
    assert!(told(open(&first)).contains("there twice"));
}

/// A checkpoint of a tiny Llama with further tensors, without some, and with other fields.
fn checkpoint(folder: &Path, more: &[&str], without: &[&str], fields: serde_json::Value) -> Checkpoint {
    let mut json = json!({"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": false});
    json.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let seeded = opara_weights::seeded(11, DType::F32, CPU);
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let shapes = square.map(|name| (name, vec![32, 32])).into_iter().chain([
        ("mlp.gate_proj", vec![48, 32]),
        ("mlp.up_proj", vec![48, 32]),
        ("mlp.down_proj", vec![32, 48]),
        ("input_layernorm", vec![32]),
        ("post_attention_layernorm", vec![32]),
    ]);
    let shapes = shapes.map(|(name, shape)| (format!("model.layers.0.{name}.weight"), shape)).chain([
        ("model.embed_tokens.weight".to_owned(), vec![96, 32]),
        ("lm_head.weight".to_owned(), vec![96, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
    ]);
    for (name, shape) in shapes.filter(|(name, _)| !without.contains(&name.as_str())) {
        tensors.insert(name.clone(), seeded.get(shape, &name).expect("a seeded tensor"));
    }
    for name in more {
        tensors.insert((*name).to_owned(), Tensor::ones(4, DType::F32, CPU).expect("ones"));
    }
    candle::safetensors::save(&tensors, folder.join("model.safetensors")).expect("it is written");
    std::fs::write(folder.join("config.json"), json.to_string()).expect("it is written");
    Checkpoint::find(folder.to_str().expect("a path of UTF-8")).expect("it is there")
}

fn load_checkpoint(checkpoint: &Checkpoint) -> opara_models::decoder::Result<Decoder> {
    Decoder::of_checkpoint(checkpoint, &Config::of_checkpoint(checkpoint)?, DType::F32, CPU, 1, 16)
}

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
    let phi = Config::of_checkpoint(&checkpoint(folder.0.path(), &[], &[], json!({"model_type": "phi3"})))
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

/// Cases of each format: `OPARA_CASES` says how many, where more are wanted.
fn cases() -> u64 {
    std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

/// A damaged copy: some bytes are replaced, some by what often ends a range, or the file is cut.
fn damaged(whole: &[u8], until: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..until.min(bytes.len()));
        let width = [1, 2, 4, 8][random.usize(..4)].min(bytes.len() - at);
        let fill = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)][random.usize(..6)];
        match random.u8(..4) {
            0 => bytes[at..at + width].fill(fill),
            1 => bytes[at] ^= 1 << random.u8(..8),
            _ => bytes[at] = fill,
        }
    }
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(..bytes.len()));
    }
    bytes
}

#[test]
fn damaged_gguf_files_never_panic() {
    let folder = Folder::new();
    for (seed, architecture) in ["llama", "gemma3"].into_iter().enumerate() {
        let (metadata, tensors) = model(architecture);
        let whole = encode(&metadata, &tensors);
        open(folder.write("whole.gguf", &whole)).expect("a model");
        let header = whole.len() - tensors.iter().map(|(.., data)| data.len()).sum::<usize>();
        let mut random = fastrand::Rng::with_seed(seed as u64);
        for _ in 0..cases() {
            let path = folder.write("damaged.gguf", &damaged(&whole, header, &mut random));
            for file in [GgufFile::from(&path), GgufFile::from(&path).allow_unread(true)] {
                if let Ok(config) = Config::of_gguf(file.clone()) {
                    let _ = Decoder::load_gguf(file, DType::F32, CPU, 1, 16.min(config.max_positions));
                }
            }
        }
    }
}

#[test]
fn damaged_configurations_never_panic() {
    let folder = Folder::new();
    let path = folder.0.path();
    let rope = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}});
    let found = checkpoint(path, &[], &[], rope).allow_unread(true);
    let whole = std::fs::read(path.join("config.json")).expect("it is there");
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..cases() {
        let mut json = damaged(&whole, whole.len(), &mut random);
        // Digits more make other sizes.
        for _ in 0..random.usize(..4) {
            let digits: Vec<usize> = (0..json.len()).filter(|at| json[*at].is_ascii_digit()).collect();
            if !digits.is_empty() {
                json.insert(digits[random.usize(..digits.len())], b'0' + random.u8(..10));
            }
        }
        std::fs::write(path.join("config.json"), json).expect("it is written");
        if let Ok(config) = Config::of_checkpoint(&found) {
            let context = 16.min(config.max_positions);
            let _ = Decoder::of_checkpoint(&found, &config, DType::F32, CPU, 1, context);
        }
    }
}
