//! Compares T5 with transformers and candle-transformers on the same weights, and its decoder step with whole passes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Activation, VarBuilder, VarMap};
use candle_transformers::models::t5 as reference;
use opara_candle::{Builder, Mode, OnUncapturable, OparaExecutor};
use opara_models::engine::{Engine, Options, Request, TextError};
use opara_models::t5::{Config, FeedForwardProj, T5Encoder, Texts, T5};

const BATCH: usize = 2;
const CPU: &Device = &Device::Cpu;

/// The configurations of `reference/t5.py`, with the names of its files.
fn models() -> [(&'static str, Config); 3] {
    let gelu = Config {
        feed_forward_proj: FeedForwardProj::GatedGelu,
        tie_word_embeddings: false,
        num_decoder_layers: Some(3),
        ..Config::tiny()
    };
    let silu = Config { feed_forward_proj: FeedForwardProj::GatedSilu, ..Config::tiny() };
    [("relu-tied", Config::tiny()), ("gelu-untied", gelu), ("silu-tied", silu)]
}

fn seeded(dtype: DType) -> VarBuilder<'static> {
    opara_weights::seeded(7, dtype, CPU)
}

fn load(config: &Config) -> Result<T5> {
    T5::load(seeded(DType::F32), config)
}

/// Token ids that vary from element to element.
fn tokens(len: usize, step: usize) -> Result<Tensor> {
    let ids = (0..BATCH * len).map(|i| (i * step % Config::tiny().vocab_size) as u32).collect::<Vec<_>>();
    Tensor::from_vec(ids, (BATCH, len), CPU)
}

/// A mask in which item `i` has `visible[i]` of `len` tokens, then padding.
fn padding(visible: [usize; BATCH], len: usize) -> Result<Tensor> {
    let mask = visible.iter().flat_map(|&n| (0..len).map(move |i| u32::from(i < n))).collect::<Vec<_>>();
    Tensor::from_vec(mask, (BATCH, len), CPU)
}

fn max_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Asserts that the difference is at most a rounding error.
#[track_caller]
fn assert_close(got: &Tensor, expected: &Tensor, of: &str) {
    let difference = max_difference(got, expected).expect("tensors of one shape");
    assert!(difference < 1e-4, "{of}: {difference}");
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

/// An engine for so many inputs at once.
fn engine(model: &Arc<T5>, slots: usize, parts: usize, builder: Option<Builder>) -> Engine<Texts> {
    let texts = Texts::new(model.clone(), 40, 40).expect("there are as many positions");
    Engine::new(Arc::new(texts), Options { slots, parts, builder, ..Options::default() }).expect("there is memory")
}

/// Requests for outputs of up to so many tokens, for the inputs' tokens that a mask shows.
fn requests(ids: &Tensor, mask: &Tensor, config: &Config, most: usize) -> Result<Vec<Request>> {
    let request = |(ids, mask): (Vec<u32>, Vec<u32>)| {
        let prompt = ids.into_iter().zip(mask).filter(|(_, is_own)| *is_own == 1).map(|(id, _)| id).collect();
        Request { prompt, most, ends: vec![config.eos_token_id], ..Request::default() }
    };
    Ok(ids.to_vec2()?.into_iter().zip(mask.to_vec2()?).map(request).collect())
}

fn strict() -> Builder {
    OparaExecutor::builder().on_uncapturable(OnUncapturable::Error)
}

/// The inputs and results of transformers.
struct Expected(HashMap<String, Tensor>);

impl Expected {
    fn of(name: &str) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Ok(Self(candle::safetensors::load(folder.join(format!("t5-{name}.safetensors")), CPU)?))
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        let tensor = &self.0[name];
        tensor.to_dtype(if tensor.dtype() == DType::I64 { DType::U32 } else { DType::F32 })
    }

    /// The generated tokens, without the start token, up to the end token.
    fn generated(&self, config: &Config) -> Result<Vec<Vec<u32>>> {
        let rows = self.get("generated")?.to_vec2::<u32>()?;
        let until_end = |row: Vec<u32>| row.into_iter().skip(1).take_while(|&t| t != config.eos_token_id).collect();
        Ok(rows.into_iter().map(until_end).collect())
    }
}

#[test]
fn results_match_transformers() -> Result<()> {
    for (name, config) in models() {
        let expected = Expected::of(name)?;
        let model = load(&config)?;
        let (ids, mask) = (expected.get("ids")?, expected.get("mask")?);
        let encoded = T5Encoder::load(seeded(DType::F32), &config)?.forward(&ids, Some(&mask))?;
        // Results at padded positions are not compared.
        assert_close(&encoded.get(0)?, &expected.get("encoded")?.get(0)?, name);
        assert_close(&encoded.get(1)?.narrow(0, 0, 13)?, &expected.get("encoded")?.get(1)?.narrow(0, 0, 13)?, name);

        let logits = model.forward(&ids, &expected.get("decoder_ids")?, Some(&mask))?;
        let every_fifth = Tensor::arange_step(0u32, logits.dim(1)? as u32, 5, CPU)?;
        assert_close(&logits.index_select(&every_fifth, 1)?, &expected.get("logits")?, name);
    }
    Ok(())
}

#[test]
fn generated_tokens_match_transformers() -> Result<()> {
    for (name, config) in models() {
        let expected = Expected::of(name)?;
        let model = Arc::new(load(&Config { n_positions: 128, ..config.clone() })?);
        let (ids, mask) = (expected.get("ids")?, expected.get("mask")?);
        let outputs = expected.generated(&config)?;
        assert_eq!(outputs.iter().any(|output| output.len() < 40), name == "gelu-untied", "one ends early");
        let requests = requests(&ids, &mask, &config, 40)?;
        for (slots, parts) in [(1, 1), (2, 2), (3, 2), (3, 1)] {
            let mut eager = engine(&model, slots, parts, None);
            assert_eq!(eager.generate(&requests, |_, _| ()).expect("outputs"), outputs, "{name}, {parts} of {slots}");
        }
        let mut replayed = engine(&model, 2, 2, Some(strict()));
        for _ in 0..2 {
            assert_eq!(replayed.generate(&requests, |_, _| ()).expect("outputs"), outputs, "{name}, replayed");
        }
        for report in replayed.reports() {
            assert_eq!(
                (report.mode(), report.is_verified(), &report.reason()),
                (Mode::Threads, true, &None),
                "{report}"
            );
        }
    }
    Ok(())
}

fn reference_config(config: &Config) -> reference::Config {
    let (gated, activation) = match config.feed_forward_proj {
        FeedForwardProj::Relu => (false, Activation::Relu),
        FeedForwardProj::GatedGelu => (true, Activation::NewGelu),
        FeedForwardProj::GatedSilu => (true, Activation::Silu),
    };
    reference::Config {
        vocab_size: config.vocab_size,
        d_model: config.d_model,
        d_kv: config.d_kv,
        d_ff: config.d_ff,
        num_layers: config.num_layers,
        num_decoder_layers: config.num_decoder_layers,
        num_heads: config.num_heads,
        relative_attention_num_buckets: config.relative_attention_num_buckets,
        relative_attention_max_distance: config.relative_attention_max_distance,
        feed_forward_proj: reference::ActivationWithOptionalGating { gated, activation },
        tie_word_embeddings: config.tie_word_embeddings,
        ..Default::default()
    }
}

/// candle-transformers differs in two ways. It uses the encoder's buckets in the decoder too; these agree up to a
/// quarter of the buckets. If the embeddings are tied, it multiplies by the root of `d_model` instead of dividing.
#[test]
fn results_match_candle_transformers() -> Result<()> {
    for (name, config) in models() {
        let config = Config { relative_attention_num_buckets: 32, relative_attention_max_distance: 128, ..config };
        let (ids, decoder_ids) = (tokens(40, 31)?, tokens(8, 17)?);
        let model = load(&config)?;
        let mut expected = reference::T5ForConditionalGeneration::load(seeded(DType::F32), &reference_config(&config))?;
        assert_close(&Module::forward(model.encoder(), &ids)?, &expected.encode(&ids)?, name);
        let mut logits = expected.forward(&ids, &decoder_ids)?;
        if config.tie_word_embeddings {
            logits = (logits / config.d_model as f64)?;
        }
        let got = model.forward(&ids, &decoder_ids, None)?.narrow(1, 7, 1)?.squeeze(1)?;
        assert_close(&got, &logits, name);
    }
    Ok(())
}

#[test]
fn steps_give_the_same_logits_as_one_pass() -> Result<()> {
    for (name, config) in models() {
        let model = load(&config)?;
        let (ids, decoder_ids, mask) = (tokens(21, 31)?, tokens(30, 17)?, padding([21, 9], 21)?);
        for mask in [None, Some(&mask)] {
            let expected = model.forward(&ids, &decoder_ids, mask)?;
            let memory = model.read(&ids, mask)?;
            let caches = model.caches(BATCH, 33)?;
            for position in 0..30 {
                let at = Tensor::new(&[position as u32; BATCH], CPU)?;
                let logits = model.step(&decoder_ids.narrow(1, position, 1)?, &at, &memory, &caches)?;
                assert_close(&logits, &expected.narrow(1, position, 1)?.squeeze(1)?, name);
            }
        }
    }
    Ok(())
}

#[test]
fn each_text_stands_at_a_position_of_its_own() -> Result<()> {
    let model = load(&Config::tiny())?;
    let (ids, decoder_ids) = (tokens(21, 31)?, tokens(6, 17)?);
    let expected = model.forward(&ids, &decoder_ids, None)?;
    let (memory, caches) = (model.read(&ids, None)?, model.caches(BATCH, 10)?);
    let step = |at: [u32; BATCH]| {
        let token = |item: usize| decoder_ids.narrow(0, item, 1)?.narrow(1, at[item] as usize, 1);
        model.step(&Tensor::cat(&[token(0)?, token(1)?], 0)?, &Tensor::new(&at, CPU)?, &memory, &caches)
    };
    for at in [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 3]] {
        let logits = step(at)?;
        for item in 0..BATCH {
            assert_close(&logits.get(item)?, &expected.get(item)?.get(at[item] as usize)?, &format!("{at:?}"));
        }
    }
    Ok(())
}

#[test]
fn cache_entries_from_the_position_on_are_ignored() -> Result<()> {
    let model = load(&Config::tiny())?;
    let memory = model.read(&tokens(21, 31)?, None)?;
    let (token, at) = (tokens(1, 5)?, Tensor::new(&[3u32; BATCH], CPU)?);
    let step = |fill: f64| {
        let caches = model.caches(BATCH, 10)?;
        let rest = |cache: &Tensor| Tensor::cat(&[cache.narrow(3, 0, 3)?, (cache.narrow(3, 3, 7)? + fill)?], 3);
        let caches = caches.iter().map(rest).collect::<Result<Vec<_>>>()?;
        model.step(&token, &at, &memory, &caches)
    };
    assert_eq!(max_difference(&step(0.)?, &step(9.)?)?, 0.);
    Ok(())
}

#[test]
fn padding_does_not_change_the_tokens() -> Result<()> {
    let model = load(&Config::tiny())?;
    let (ids, decoder_ids) = (tokens(17, 31)?, tokens(6, 17)?);
    let padded = model.forward(&ids, &decoder_ids, Some(&padding([5, 5], 17)?))?;
    let alone = model.forward(&ids.narrow(1, 0, 5)?, &decoder_ids, None)?;
    assert_close(&padded, &alone, "logits");
    Ok(())
}

#[test]
fn logits_that_are_not_finite_are_an_error() -> Result<()> {
    for (name, config) in models().map(|(name, config)| (name, Config { n_positions: 128, ..config })) {
        let weights = VarMap::new();
        let load = || T5::load(VarBuilder::from_varmap(&weights, DType::F32, CPU), &config);
        load()?;
        let norm = weights.data().lock().expect("no panic")["decoder.final_layer_norm.weight"].clone();
        norm.set(&(norm.as_tensor() * f64::NAN)?)?;
        let model = Arc::new(load()?);
        let request = Request { prompt: vec![3, 1, 4], most: 5, ..Request::default() };
        for builder in [None, Some(strict())] {
            let failed = engine(&model, 1, 1, builder).generate(std::slice::from_ref(&request), |_, _| ());
            assert!(matches!(failed, Err(TextError::NotFinite)), "{name}: {failed:?}");
        }
    }
    Ok(())
}

#[test]
fn executors_give_the_same_bits() -> Result<()> {
    for (name, config) in models() {
        let (ids, decoder_ids, mask) = (tokens(21, 31)?, tokens(30, 17)?, padding([21, 9], 21)?);
        let assert_replayed = |executor: &OparaExecutor| {
            let report = executor.report();
            assert_eq!(
                (report.mode(), report.is_verified(), &report.reason()),
                (Mode::Threads, true, &None),
                "{name}: {report}"
            );
        };

        let encoder = T5Encoder::load(seeded(DType::F32), &config)?;
        let expected = Module::forward(&encoder, &ids)?;
        let executor = strict().build(encoder, &ids)?;
        assert_replayed(&executor);
        assert_eq!(max_difference(&executor.forward(&ids)?, &expected)?, 0., "{name}");

        let model = load(&config)?;
        let inputs = [ids, decoder_ids, mask];
        let expected = model.forward(&inputs[0], &inputs[1], Some(&inputs[2]))?;
        let all = move |x: &[Tensor]| Ok(vec![model.forward(&x[0], &x[1], Some(&x[2]))?]);
        let executor = strict().build_fn(all, &inputs)?;
        assert_replayed(&executor);
        assert_eq!(max_difference(&executor.call(&inputs)?[0], &expected)?, 0., "{name}");
    }
    Ok(())
}

/// Inputs come and go: each output is what it is alone.
#[test]
fn an_output_does_not_depend_on_those_beside_it() -> Result<()> {
    let config = Config { n_positions: 128, ..Config::tiny() };
    let model = Arc::new(load(&config)?);
    let inputs = (0..9).map(|at| (0..1 + at * 5).map(|i| (i * 31 + at) % config.vocab_size as u32).collect());
    let ends = vec![config.eos_token_id];
    let request = |(at, prompt)| Request { prompt, most: 1 + at * 17 % 40, ends: ends.clone(), ..Request::default() };
    let requests: Vec<Request> = inputs.enumerate().map(request).collect();
    let expected = engine(&model, 1, 1, None).generate(&requests, |_, _| ()).expect("outputs");
    for builder in [None, Some(strict())] {
        let mut engine = engine(&model, 3, 1, builder);
        assert_eq!(engine.generate(&requests, |_, _| ()).expect("outputs"), expected);
    }
    Ok(())
}

/// The seeded weights with the outputs of the feed-forward networks scaled by `factor`.
fn with_large_sums(config: &Config, dtype: DType, factor: f64) -> Result<VarBuilder<'static>> {
    let names = VarMap::new();
    T5::load(VarBuilder::from_varmap(&names, DType::F32, CPU), config)?;
    let names = names.data().lock().expect("no thread panicked with it").clone();
    let tensor = |(name, var): (String, candle::Var)| {
        let weight = seeded(DType::F32).get(var.shape(), &name)?;
        let factor = if name.ends_with("wo.weight") { factor } else { 1. };
        Ok((name, (weight * factor)?))
    };
    let tensors = names.into_iter().map(tensor).collect::<Result<_>>()?;
    Ok(VarBuilder::from_tensors(tensors, dtype, CPU))
}

#[test]
fn f16_is_finite_if_sums_exceed_its_range_or_all_tokens_are_padding() -> Result<()> {
    for (name, config) in models() {
        // With the second factor the residual sums exceed the largest number of f16.
        for factor in [1., 3e5] {
            let load = |dtype| T5::load(with_large_sums(&config, dtype, factor)?, &config);
            let (model, full) = (load(DType::F16)?, load(DType::F32)?);
            let (ids, decoder_ids, mask) = (tokens(21, 31)?, tokens(30, 17)?, padding([9, 0], 21)?);
            let got = model.forward(&ids, &decoder_ids, Some(&mask))?.to_dtype(DType::F32)?;
            let expected = full.forward(&ids, &decoder_ids, Some(&mask))?;
            assert!(got.flatten_all()?.to_vec1::<f32>()?.iter().all(|v| v.is_finite()), "{name}, {factor}");
            let difference = max_difference(&got.get(0)?, &expected.get(0)?)?;
            assert!(difference < 0.1, "{name}, {factor}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn an_encoder_loads_without_decoder_tensors() -> Result<()> {
    let config = Config::tiny();
    let weights = VarMap::new();
    let expected = T5::load(VarBuilder::from_varmap(&weights, DType::F32, CPU), &config)?;
    let tensors = weights.data().lock().expect("no thread panicked with it").clone();
    let tensors = tensors.into_iter().filter(|(name, _)| !name.starts_with("decoder."));
    // Encoder-only checkpoints use the encoder's name for the embeddings.
    let named = |name: String| if name == "shared.weight" { "encoder.embed_tokens.weight".into() } else { name };
    let tensors = tensors.map(|(name, var)| (named(name), var.as_tensor().clone())).collect();
    let encoder = T5Encoder::load(VarBuilder::from_tensors(tensors, DType::F32, CPU), &config)?;
    let ids = tokens(9, 31)?;
    assert_eq!(max_difference(&Module::forward(&encoder, &ids)?, &expected.encoder().forward(&ids, None)?)?, 0.);
    Ok(())
}

#[test]
fn configs_of_checkpoints_are_parsed() -> serde_json::Result<()> {
    let small = r#"{
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
        "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
        "num_heads": 8, "num_layers": 6, "output_past": true, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "vocab_size": 32128
    }"#;
    let expected = Config { decoder_start_token_id: Some(0), ..Config::small() };
    assert_eq!(serde_json::from_str::<Config>(small)?, expected);
    assert_eq!(expected.start_token(), Config::small().start_token());
    let v1_1 = r#"{
        "d_ff": 1024, "d_kv": 64, "d_model": 512, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true,
        "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8,
        "relative_attention_num_buckets": 32, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 32128
    }"#;
    assert_eq!(serde_json::from_str::<Config>(v1_1)?, Config { num_decoder_layers: Some(8), ..Config::v1_1_small() });
    let error = serde_json::from_str::<Config>(r#"{"feed_forward_proj": "gated-relu"}"#).expect_err("no such network");
    assert!(error.to_string().contains("gated-gelu"), "{error}");
    Ok(())
}

#[test]
fn invalid_configurations_and_inputs_are_errors() -> Result<()> {
    let tiny = Config::tiny();
    for (config, part) in [
        (Config { relative_attention_num_buckets: 7, ..tiny.clone() }, "relative_attention_num_buckets 7"),
        (Config { relative_attention_max_distance: 4, ..tiny.clone() }, "relative_attention_max_distance 4"),
        (Config { num_heads: 0, ..tiny.clone() }, "num_heads"),
        (Config { n_positions: 0, ..tiny.clone() }, "n_positions"),
    ] {
        let error = message(load(&config));
        assert!(error.contains(part), "{error}");
    }

    let model = Arc::new(load(&tiny)?);
    let (ids, long) = (tokens(5, 31)?, tokens(tiny.n_positions + 1, 31)?);
    let memory = model.read(&ids, None)?;
    let (caches, at) = (model.caches(BATCH, 4)?, Tensor::new(&[0u32; BATCH], CPU)?);
    for (error, part) in [
        (message(model.forward(&long, &ids, None)), "49 tokens are more than the 48 of n_positions"),
        (message(model.forward(&ids, &long, None)), "49 tokens are more than the 48 of n_positions"),
        (message(model.caches(1, 49)), "49 tokens"),
        (message(Texts::new(model.clone(), 9, 9)), "128 tokens are more than the 48 of n_positions"),
        (message(model.forward(&ids, &ids, Some(&padding([5, 5], 6)?))), "mask of shape [2, 6]"),
        (message(model.forward(&ids, &ids.narrow(0, 0, 1)?, None)), "2 inputs and 1 outputs"),
        (message(model.forward(&ids.get(0)?, &ids, None)), "(batch, seq)"),
        (message(model.step(&ids, &at, &memory, &caches)), "(batch, 1)"),
        (message(model.step(&ids.narrow(1, 0, 1)?, &at, &memory, &caches[1..])), "1 caches for 2 layers"),
    ] {
        assert!(error.contains(part), "{error}");
    }
    let model = Arc::new(load(&Config { n_positions: 128, ..tiny })?);
    for (prompt, most, part) in [(129, 1, "an input of 129 tokens"), (1, 41, "an output of 41 tokens")] {
        let request = Request { prompt: vec![1; prompt], most, ..Request::default() };
        let error = engine(&model, 1, 1, None).generate(&[request], |_, _| ()).expect_err("an error").to_string();
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}
