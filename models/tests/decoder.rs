//! Decoders compared with transformers on the same weights, and their steps with whole passes.

use std::collections::HashMap;
use std::path::Path;

use candle::{DType, Device, Result, Tensor};
use opara_models::decoder::{Config, Decoder};

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

/// Inputs and outputs of transformers.
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

/// Logits of all tokens, given in parts of these lengths: `(batch, tokens, vocab)`.
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

/// The message of an error.
fn told<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> String {
    result.err().expect("an error").to_string()
}

mod gguf {
    use std::path::{Path, PathBuf};

    use candle::quantized::gguf_file::{write, Value};
    use candle::quantized::{GgmlDType, QTensor};
    use opara_models::decoder::Text;

    use super::*;

    /// The order of a weight's rows in GGUF, for heads whose rotary pairs are neighbours.
    fn paired(rows: usize, heads: usize) -> Vec<u32> {
        let dim = rows / heads;
        (0..rows).map(|row| (row / dim * dim + row % dim % 2 * (dim / 2) + row % dim / 2) as u32).collect()
    }

    /// The seeded model as llama.cpp's converter writes it, with matrices of a given type.
    fn file(folder: &Path, config: &Config, matrices: GgmlDType) -> Result<PathBuf> {
        let weights = opara_weights::seeded(11, DType::F32, CPU);
        let mut tensors = Vec::new();
        let mut add = |name: String, from: String, shape: &[usize], heads: Option<usize>| -> Result<()> {
            let mut tensor = weights.get(shape, &from)?;
            if let Some(heads) = heads {
                tensor = tensor.index_select(&Tensor::new(paired(shape[0], heads), CPU)?, 0)?;
            }
            let dtype = if shape.len() == 2 { matrices } else { GgmlDType::F32 };
            tensors.push((name, QTensor::quantize(&tensor, dtype)?));
            Ok(())
        };
        let Config { vocab, hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
        add("token_embd.weight".into(), "model.embed_tokens.weight".into(), &[vocab, hidden], None)?;
        add("output_norm.weight".into(), "model.norm.weight".into(), &[hidden], None)?;
        add("output.weight".into(), "lm_head.weight".into(), &[vocab, hidden], None)?;
        for at in 0..config.layers.len() {
            let (q, kv) = (heads * head_dim, kv_heads * head_dim);
            let parts: [(&str, &str, &[usize], Option<usize>); 9] = [
                ("attn_norm", "input_layernorm", &[hidden], None),
                ("ffn_norm", "post_attention_layernorm", &[hidden], None),
                ("attn_q", "self_attn.q_proj", &[q, hidden], Some(heads)),
                ("attn_k", "self_attn.k_proj", &[kv, hidden], Some(kv_heads)),
                ("attn_v", "self_attn.v_proj", &[kv, hidden], None),
                ("attn_output", "self_attn.o_proj", &[hidden, q], None),
                ("ffn_gate", "mlp.gate_proj", &[intermediate, hidden], None),
                ("ffn_up", "mlp.up_proj", &[intermediate, hidden], None),
                ("ffn_down", "mlp.down_proj", &[hidden, intermediate], None),
            ];
            for (name, from, shape, heads) in parts {
                add(format!("blk.{at}.{name}.weight"), format!("model.layers.{at}.{from}.weight"), shape, heads)?;
            }
        }
        let number = |n: usize| Value::U32(n as u32);
        let texts = |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::String(text.to_string())).collect());
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.embedding_length", number(hidden)),
            ("llama.feed_forward_length", number(intermediate)),
            ("llama.block_count", number(config.layers.len())),
            ("llama.attention.head_count", number(heads)),
            ("llama.attention.head_count_kv", number(kv_heads)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(config.eps as f32)),
            ("llama.context_length", number(config.max_positions)),
            ("tokenizer.ggml.model", Value::String("gpt2".into())),
            ("tokenizer.ggml.pre", Value::String("qwen2".into())),
            ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "ab", "Ġ", "Ġab", "<end>"])),
            ("tokenizer.ggml.merges", texts(&["a b", "Ġ ab"])),
            ("tokenizer.ggml.token_type", Value::Array([1, 1, 1, 1, 1, 1, 3].map(Value::I32).to_vec())),
            ("tokenizer.ggml.eos_token_id", number(6)),
        ];
        let metadata: Vec<_> = metadata.iter().map(|(name, value)| (*name, value)).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let path = folder.join(format!("{matrices:?}.gguf"));
        write(&mut std::fs::File::create(&path)?, &metadata, &tensors)?;
        Ok(path)
    }

    fn config() -> Config {
        // Files have the epsilon in f32.
        Config { intermediate: 64, eps: f64::from(1e-6f32), ..Config::tiny() }
    }

    fn ids() -> Result<Tensor> {
        Tensor::from_iter((0..24u32).map(|i| i * 31 % 96), CPU)?.reshape((2, 12))
    }

    #[test]
    fn a_gguf_file_gives_the_model_that_it_was_made_of() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let expected = logits(&load(&config(), 12), &ids()?, &[12])?;
        for (dtype, most) in
            [(GgmlDType::F32, 1e-4), (GgmlDType::F16, 0.02), (GgmlDType::Q8_0, 0.2), (GgmlDType::Q4_0, 3.)]
        {
            let path = file(folder.path(), &config(), dtype)?;
            let read = Config::of_gguf(&path).expect("a sound file");
            assert_eq!(Config { eos: Vec::new(), ..read.clone() }, config(), "{dtype:?}");
            assert_eq!(read.eos, [6]);
            let model = Decoder::load_gguf(&path, DType::F32, CPU, 2, 12).expect("a sound file");
            for parts in [vec![12], vec![5, 1, 1, 5]] {
                let difference = max_difference(&logits(&model, &ids()?, &parts)?, &expected)?;
                assert!(difference < most && (difference > 0. || dtype == GgmlDType::F32), "{dtype:?}: {difference}");
            }
        }
        Ok(())
    }

    #[test]
    fn its_own_tokenizer_is_used_unless_there_is_one_beside_it() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = file(folder.path(), &config(), GgmlDType::F32)?;
        let text = Text::of_gguf(&path).expect("a tokenizer");
        let tokens = text.encode("ab ab<end>c").expect("tokens");
        assert_eq!(tokens, [3, 5, 6, 2]);
        assert_eq!(text.decode(&tokens).expect("text"), "ab abc");
        std::fs::write(folder.path().join("tokenizer.json"), "{")?;
        assert!(told(Text::of_gguf(&path)).contains("tokenizer"));
        Ok(())
    }

    #[test]
    fn a_damaged_file_is_named_with_what_is_wrong() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = file(folder.path(), &config(), GgmlDType::Q8_0)?;
        let whole = std::fs::read(&path)?;
        for kept in [0, 3, 100, 2000, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..kept])?;
            let told = told(Decoder::load_gguf(&path, DType::F32, CPU, 1, 12));
            assert!(told.contains("not a sound GGUF file") && told.contains("Q8_0.gguf"), "{kept} bytes: {told}");
        }
        std::fs::write(&path, [&b"GGML"[..], &whole[4..]].concat())?;
        assert!(told(Config::of_gguf(&path)).contains("not a sound GGUF file"));
        assert!(told(Config::of_gguf(&folder.path().join("none.gguf"))).contains("cannot read"));
        Ok(())
    }
}

#[test]
fn what_a_configuration_lacks_or_does_not_know_is_said() {
    let with = |name: &str, value: serde_json::Value| {
        let mut json = serde_json::json!({
            "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 64,
        });
        json[name] = value;
        Config::from_json(&json)
    };
    use serde_json::json;
    let unknown = told(with("model_type", json!("mamba")));
    assert!(unknown.contains("`mamba`") && unknown.contains("qwen3") && unknown.contains("phi3"), "{unknown}");
    for (name, value, expected) in [
        ("hidden_size", json!(null), "`hidden_size` is missing"),
        ("vocab_size", json!("many"), "`vocab_size` is \"many\", not a number above 0"),
        ("num_key_value_heads", json!(3), "3 heads of keys do not divide 4"),
        ("hidden_act", json!("relu6"), "`relu6`"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}), "`yarn`"),
        ("rope_scaling", json!({"rope_type": "linear"}), "`factor` is missing"),
        ("layer_types", json!(["full_attention"]), "1 `layer_types` of 3 layers"),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention", "full_attention"]),
            "`sliding_window` is missing",
        ),
    ] {
        let told = told(with(name, value));
        assert!(told.contains(expected), "{name}: {told}");
    }
}

#[test]
fn old_and_new_files_of_transformers_mean_the_same() {
    use serde_json::json;
    let base = json!({
        "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7, "sliding_window": 6,
    });
    let of = |fields: serde_json::Value| {
        let mut json = base.clone();
        json.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Config::from_json(&json).expect("a configuration")
    };
    let old = of(json!({
        "rope_theta": 1e5, "rope_local_base_freq": 1e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }));
    let new = of(json!({
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention"],
    }));
    assert_eq!(old, new);
    let nested = Config::from_json(&json!({"model_type": "gemma3", "text_config": base})).expect("a configuration");
    assert_eq!(nested, of(json!({})));
}

mod generation {
    use std::sync::Arc;

    use opara_candle::ops::Sampling;
    use opara_candle::{Mode, OparaExecutor};
    use opara_models::decoder::{DecoderError, Generator};

    use super::*;

    #[test]
    fn greedy_texts_are_those_of_transformers() -> Result<()> {
        // If a text outgrows the context of LongRoPE's short factors, transformers encodes it again with the long ones.
        for name in MODELS.into_iter().filter(|name| *name != "phi3-long") {
            let reference = Reference::of(name);
            let prompts = reference.ids().narrow(1, 0, 10)?.to_vec2::<u32>()?;
            let expected = reference.tensors["generated"].to_dtype(DType::U32)?.to_vec2::<u32>()?;
            let model = Arc::new(reference.model());
            let mut eager = Generator::eager(model, &[Sampling::default(); 2]).expect("a generator");
            let got = eager.generate(&prompts, expected[0].len(), &[], |_| ()).expect("texts");
            assert_eq!(got.tokens, expected, "{name}");
        }
        Ok(())
    }

    /// Three texts of a small model, by executors and by eager execution.
    fn both(sampling: &[Sampling]) -> [Generator; 2] {
        let model = Arc::new(load(&Config::tiny(), 200));
        let fast = Generator::new(model.clone(), sampling, &OparaExecutor::builder()).expect("executors");
        [fast, Generator::eager(model, sampling).expect("a generator")]
    }

    #[test]
    fn executors_write_what_eager_execution_writes_at_every_length() {
        let drawn = Sampling { temperature: 0.8, top_k: 20, seed: 4, ..Sampling::default() };
        let [mut fast, mut eager] = both(&[Sampling::default(), drawn, Sampling { seed: 5, ..drawn }]);
        let (read, step) = fast.executors().expect("executors");
        assert!([read, step].iter().all(|executor| executor.report().mode != Mode::Eager), "{}", step.report());
        for lengths in [[1usize, 5, 3], [130, 20, 128], [2, 1, 150]] {
            let prompts: Vec<Vec<u32>> =
                lengths.iter().map(|&n| (0..n).map(|i| (i * 41 + n) as u32 % 96).collect()).collect();
            let expected = eager.generate(&prompts, 12, &[], |_| ()).expect("texts");
            let mut seen: Vec<Vec<u32>> = vec![Vec::new(); 3];
            let got = fast.generate(&prompts, 12, &[], |tokens| {
                seen.iter_mut().zip(tokens).for_each(|(seen, token)| seen.extend(token));
            });
            assert_eq!(got.expect("texts").tokens, expected.tokens, "behind {lengths:?}");
            assert_eq!(seen, expected.tokens, "as they come");
        }
    }

    #[test]
    fn a_text_does_not_depend_on_those_beside_it() {
        let drawn = Sampling { temperature: 0.8, seed: 9, ..Sampling::default() };
        let prompt = vec![7, 8, 9];
        let beside = vec![1; 50];
        let [_, mut several] = both(&[Sampling::default(), drawn]);
        let [_, mut alone] = both(&[drawn]);
        let expected = alone.generate(std::slice::from_ref(&prompt), 20, &[], |_| ()).expect("a text").tokens;
        let got = several.generate(&[beside, prompt], 20, &[], |_| ()).expect("texts").tokens;
        assert_eq!(got[1], expected[0]);
    }

    #[test]
    fn a_text_ends_where_an_end_token_comes() {
        let [_, mut eager] = both(&[Sampling::default(); 2]);
        let prompts = [vec![3, 4], vec![50, 60, 70]];
        let whole = eager.generate(&prompts, 30, &[], |_| ()).expect("texts").tokens;
        let end = whole[0][7];
        let cut = eager.generate(&prompts, 30, &[end], |_| ()).expect("texts").tokens;
        for (cut, whole) in cut.iter().zip(&whole) {
            let expected = whole.iter().position(|&token| token == end).unwrap_or(whole.len());
            assert_eq!(cut[..], whole[..expected]);
        }
        assert!(cut[0].len() < 8);
    }

    #[test]
    fn bad_prompts_are_errors_that_say_why() {
        let [mut fast, _] = both(&[Sampling::default()]);
        let mut fails = |prompts: &[Vec<u32>], most| fast.generate(prompts, most, &[], |_| ()).expect_err("an error");
        let long = fails(&[vec![1; 190]], 11);
        assert!(matches!(long, DecoderError::TooLong { prompt: 190, answer: 11, context: 200, .. }), "{long}");
        assert!(long.to_string().contains("190 tokens") && long.to_string().contains("at most 256"), "{long}");
        assert!(matches!(fails(&[vec![]], 1), DecoderError::EmptyPrompt { index: 0 }));
        assert!(matches!(fails(&[vec![96]], 1), DecoderError::UnknownToken { token: 96, vocab: 96 }));
        assert!(matches!(fails(&[vec![1], vec![2]], 1), DecoderError::Batch { found: 2, batch: 1 }));
        let cache = Config::tiny().fits(1 << 30, 256, DType::F32, CPU).expect_err("no room");
        assert!(matches!(cache, DecoderError::NoRoom { .. }), "{cache}");
        let context = Config::tiny().fits(1, 257, DType::F32, CPU).expect_err("too long");
        assert!(matches!(context, DecoderError::ContextTooLong { context: 257, most: 256 }), "{context}");
    }
}

mod text {
    use opara_models::decoder::{Message, Text};

    use super::*;

    const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [
        {"id": 3, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "model": {"type": "WordLevel", "vocab": {"user": 0, "hello": 1, "there": 2, "<s>": 3, "[?]": 4}, "unk_token": "[?]"},
        "pre_tokenizer": {"type": "Whitespace"}}"#;

    fn said(content: &str) -> Vec<Message> {
        vec![Message { role: "user".into(), content: content.into() }]
    }

    #[test]
    fn templates_are_found_and_rendered() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tokenizer.json");
        assert!(told(Text::beside(&path)).contains("tokenizer.json is missing"));
        std::fs::write(&path, TOKENIZER)?;
        let plain = Text::beside(&path).expect("a tokenizer");
        assert!(told(plain.encode_chat(&said("hello"))).contains("no chat template"));
        let template = "{{ bos_token }} {% for m in messages %}\n{% if m['role'].startswith('x') %}\
                        {{ raise_exception('who?') }}{% endif %}{{ m.role }} {{ m.content.strip() }}{% endfor %}";
        let settings = serde_json::json!({"bos_token": {"content": "<s>"}, "chat_template": template});
        std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string())?;
        let text = Text::beside(&path).expect("a tokenizer");
        assert_eq!(text.encode_chat(&said(" hello there ")).expect("tokens"), [3, 0, 1, 2]);
        let strange = [Message { role: "xenon".into(), content: String::new() }];
        assert!(told(text.encode_chat(&strange)).contains("who?"));
        std::fs::write(folder.path().join("chat_template.jinja"), "there")?;
        assert_eq!(Text::beside(&path).expect("a tokenizer").encode_chat(&said("hello")).expect("tokens"), [2]);
        std::fs::write(folder.path().join("chat_template.jinja"), "{% for %}")?;
        assert!(told(Text::beside(&path)).contains("template"));
        let mut pieces = text.pieces();
        let piece = [1, 2].map(|token| pieces(token).expect("a piece")).concat();
        assert_eq!(piece, "hello there");
        Ok(())
    }
}
