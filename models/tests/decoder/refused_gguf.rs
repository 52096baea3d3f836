//! What GGUF files say that is not known: it is refused by name, unless it changes nothing.

use opara_models::decoder::{Config, DecoderError, GgufFile};

use super::made_gguf::Meta::{Bool, Counts, Text, F32, U32};
use super::made_gguf::{encode, floats, model, open, Meta, Stored};
use super::{answer, told, Folder};

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
