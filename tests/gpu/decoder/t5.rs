//! T5's steps on a GPU against whole passes on the CPU.

use std::sync::Arc;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_candle::{Mode, OparaExecutor};
use opara_models::engine::{Engine, Options, Request};
use opara_models::t5::{Config, FeedForwardProj, Texts, T5};

use super::assert_near;
use crate::common::{gpu, CPU};

const BATCH: usize = 2;

/// Heads of several sizes, feed-forward networks of each kind, and inputs of few and of many tokens.
fn models() -> [(&'static str, Config, usize); 3] {
    let tiny = Config { n_positions: 384, ..Config::tiny() };
    let gelu = FeedForwardProj::GatedGelu;
    [
        ("relu", tiny.clone(), 21),
        ("gelu", Config { d_kv: 64, feed_forward_proj: gelu, tie_word_embeddings: false, ..tiny.clone() }, 40),
        ("silu", Config { d_kv: 64, feed_forward_proj: FeedForwardProj::GatedSilu, ..tiny }, 300),
    ]
}

fn load(config: &Config, dtype: DType, device: &Device) -> Result<T5> {
    Ok(T5::load(opara_weights::seeded(7, dtype, device), config)?)
}

fn tokens(len: usize, step: usize) -> Result<Tensor> {
    let ids = (0..BATCH * len).map(|i| (i * step % Config::tiny().vocab_size) as u32);
    Ok(Tensor::from_iter(ids, CPU)?.reshape((BATCH, len))?)
}

/// The second text is padded.
fn padding(len: usize) -> Result<Tensor> {
    let mask = (0..BATCH).flat_map(|item| (0..len).map(move |at| u32::from(item == 0 || at < len / 2)));
    Ok(Tensor::from_iter(mask, CPU)?.reshape((BATCH, len))?)
}

#[test]
fn steps_give_the_logits_of_one_pass_on_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (name, config, len) in models() {
        let (here, there) = (load(&config, DType::F32, CPU)?, load(&config, DType::F32, &device)?);
        let (ids, decoder_ids) = (tokens(len, 31)?, tokens(30, 17)?);
        for mask in [None, Some(padding(len)?)] {
            let expected = here.forward(&ids, &decoder_ids, mask.as_ref())?;
            let mask = mask.map(|mask| mask.to_device(&device)).transpose()?;
            let memory = there.read(&ids.to_device(&device)?, mask.as_ref())?;
            for places in [33, 320] {
                let caches = there.caches(BATCH, places)?;
                for position in 0..30 {
                    let at = Tensor::new(&[position as u32; BATCH], &device)?;
                    let token = decoder_ids.narrow(1, position, 1)?.to_device(&device)?;
                    let got = there.step(&token, &at, &memory, &caches)?;
                    let expected = expected.narrow(1, position, 1)?.squeeze(1)?;
                    assert_near(&got, &expected, 1e-4, format!("{name} at {position} of {places}, {mask:?}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn replayed_steps_write_what_eager_ones_write() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        for (name, config, len) in models() {
            let model = Arc::new(load(&config, dtype, &device)?);
            let prompts = [tokens(len, 31)?.to_vec2::<u32>()?, vec![vec![7; len / 2], vec![9; 3]]].concat();
            let ends = vec![config.eos_token_id];
            let request = |prompt| Request { prompt, most: 40, ends: ends.clone(), ..Request::default() };
            let requests: Vec<Request> = prompts.into_iter().map(request).collect();
            let texts = Arc::new(Texts::new(model.clone(), len, 40)?);
            for (slots, parts) in [(4, 4), (3, 1), (1, 1)] {
                let engine =
                    |builder| Engine::new(texts.clone(), Options { slots, parts, builder, ..Options::default() });
                let (mut fast, mut eager) = (engine(Some(OparaExecutor::builder()))?, engine(None)?);
                let expected = eager.generate(&requests, |_, _| ())?;
                for _ in 0..2 {
                    let got = fast.generate(&requests, |_, _| ())?;
                    assert_eq!(got, expected, "{name} in {dtype:?}, {parts} of {slots}");
                }
                for report in fast.reports() {
                    assert_eq!(report.mode(), Mode::Graph, "{name}: {report}");
                }
            }
        }
    }
    Ok(())
}
