//! Whole decoders: one graph for all lengths of text.

use std::sync::Arc;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_candle::{Mode, OparaExecutor};
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{Engine, Options, Request, Sampling};

use super::assert_near;
use crate::common::{gpu, CPU};

/// Small models of every kind, with head sizes that kernels support, and others.
pub fn configs() -> Vec<(&'static str, Config)> {
    let small = |json: serde_json::Value| Config::from_json(&json).expect("a configuration");
    let base = |kind: &str| {
        serde_json::json!({
            "model_type": kind, "vocab_size": 300, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
            "tie_word_embeddings": true,
        })
    };
    let windows = serde_json::json!({"sliding_window": 20});
    let gemmas = serde_json::json!({"sliding_window": 20, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64});
    let nothing = serde_json::json!({});
    let kinds = [
        ("llama", &nothing),
        ("mistral", &windows),
        ("qwen2", &windows),
        ("qwen3", &windows),
        ("gemma3_text", &gemmas),
        ("phi3", &windows),
    ];
    let with = |(kind, fields): (&'static str, &serde_json::Value)| {
        let mut json = base(kind);
        let own = fields.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
        json.as_object_mut().expect("an object").extend(own);
        (kind, small(json))
    };
    let mut configs: Vec<_> = kinds.into_iter().map(with).collect();
    configs.push(("tiny", Config::tiny()));
    configs
}

/// Engines that write as many texts at once, of prompts that are read together: by executors, and eagerly.
pub fn engines(model: &Arc<Decoder>, texts: usize) -> Result<[Engine<Decoder>; 2]> {
    let engine =
        |builder| Engine::new(model.clone(), Options { slots: texts, parts: texts, builder, ..Options::default() });
    Ok([engine(Some(OparaExecutor::builder()))?, engine(None)?])
}

/// Requests for texts behind prompts, drawn in these ways.
pub fn requests(prompts: &[Vec<u32>], sampling: &[Sampling], most: usize) -> Vec<Request> {
    let texts = prompts.iter().zip(sampling);
    texts.map(|(prompt, &sampling)| Request { prompt: prompt.clone(), most, sampling, ..Request::default() }).collect()
}

fn load(config: &Config, dtype: DType, device: &Device) -> Result<Decoder> {
    Ok(Decoder::load(opara_weights::seeded(5, dtype, device), config, 240)?)
}

#[test]
fn logits_on_a_gpu_equal_the_cpus() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (name, config) in configs() {
        let (here, there) = (load(&config, DType::F32, CPU)?, load(&config, DType::F32, &device)?);
        let (mut on_cpu, mut on_gpu) = (here.cache(2)?, there.cache(2)?);
        let mut at = 0;
        for tokens in [33, 1, 1, 7, 1] {
            let ids = (0..2 * tokens).map(|i| ((at + i) * 37 % config.vocab) as u32);
            let ids = Tensor::from_iter(ids, CPU)?.reshape((2, tokens))?;
            let expected = here.logits(&here.forward(&ids, &on_cpu)?)?;
            let got = there.logits(&there.forward(&ids.to_device(&device)?, &on_gpu)?)?;
            assert_near(&got, &expected, 1e-4, format!("{name}, {tokens} tokens from {at} on"));
            at += tokens;
            (on_cpu, on_gpu) = (on_cpu.at(at)?, on_gpu.at(at)?);
        }
    }
    Ok(())
}

#[test]
fn one_graph_writes_what_eager_execution_writes_at_every_length() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        for (name, config) in configs() {
            let model = Arc::new(load(&config, dtype, &device)?);
            let drawn = Sampling { temperature: 0.9, top_k: 40, seed: 3, ..Sampling::default() };
            let sampling = [Sampling::default(), drawn, Sampling { top_p: 0.9, ..drawn }];
            let [mut fast, mut eager] = engines(&model, 3)?;
            for lengths in [[3, 1, 9], [150, 20, 129], [2, 180, 1]] {
                let prompts: Vec<Vec<u32>> =
                    lengths.iter().map(|&n| (0..n).map(|i| (i * 41 + n) as u32 % 96).collect()).collect();
                let requests = requests(&prompts, &sampling, 40);
                let expected = eager.generate(&requests, |_, _| ())?;
                assert_eq!(fast.generate(&requests, |_, _| ())?, expected, "{name} in {dtype:?} behind {lengths:?}");
                // One text has kernels of its own.
                let [mut fast, mut eager] = engines(&model, 1)?;
                let expected = eager.generate(&requests[..1], |_, _| ())?;
                assert_eq!(fast.generate(&requests[..1], |_, _| ())?, expected, "{name} in {dtype:?} alone");
            }
            for report in fast.reports() {
                assert_eq!(report.mode(), Mode::Graph, "{name}: {report}");
            }
        }
    }
    Ok(())
}

/// Captured kernels of libraries may hold addresses of earlier tensors in their padding. Such tensors are freed when building ends, and
/// the larger a cache is, the likelier is one of them. A plan that took them for the module's memory was built anew at every call.
#[test]
fn long_prompts_of_a_batch_are_read_by_a_plan_that_stays() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let config = Config::named("smollm2-135m").expect("a known name");
    let (length, tokens) = (1_000, 3);
    let weights = opara_weights::seeded(5, DType::BF16, &device);
    let model = Arc::new(Decoder::load(weights, &config, length + tokens)?);
    let prompts: Vec<Vec<u32>> =
        (0..8).map(|text| (0..length as u32).map(|i| (i * 41 + text) % 96).collect()).collect();
    let requests = requests(&prompts, &[Sampling::default(); 8], tokens);
    let [mut fast, mut eager] = engines(&model, 8)?;
    let got = fast.generate(&requests, |_, _| ())?;
    assert_eq!(fast.reports().iter().map(|report| report.rebuilds()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(got, eager.generate(&requests, |_, _| ())?);
    Ok(())
}
