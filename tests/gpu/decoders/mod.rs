//! candle-transformers' decoders, unchanged: which steps are replayed, and that they give what the module gives.
//!
//! `cargo test --release --features cudnn --test gpu decoders:: -- --nocapture` prints a table.

mod behaviour;
mod beside;
mod models;
mod opaque;
mod padded;
mod quantised;
mod texts;

use std::time::Instant;

use candle::{DType, Device, Tensor, D};
use models::{Model, MODELS, VOCABULARY};
use opara_candle::OparaExecutor;
use opara_examples::relative_error;
use texts::{executor, weights};

use crate::common::gpu;

const CAPACITY: usize = 64;

fn prompt(tokens: u32, device: &Device) -> candle::Result<Tensor> {
    Tensor::from_iter((0..tokens).map(|i| i * 7 % VOCABULARY as u32), device)?.unsqueeze(0)
}

/// The last token's logits.
fn last(logits: &Tensor) -> candle::Result<Tensor> {
    let all = logits.flatten_all()?;
    let vocabulary = logits.dim(D::Minus1)?;
    all.narrow(0, all.elem_count() - vocabulary, vocabulary)
}

/// A decoder beside the module itself.
struct Outcome {
    refused: Option<String>,
    is_replayed: bool,
    apart: f32,
    same_tokens: usize,
    tokens: usize,
    own_us: f64,
    us: f64,
    prompt_refused: Option<String>,
    own_prompt_us: f64,
    prompt_us: f64,
}

fn outcome(model: &Model, dtype: DType, device: &Device) -> anyhow::Result<Outcome> {
    let (weights, example) = (weights(dtype, device), prompt(6, device)?);
    let mut fast = executor(OparaExecutor::builder(), model.make, &weights, &example, CAPACITY)?;
    let (mut apart, mut same_tokens, mut tokens, mut is_replayed) = (0f32, 0, 0, true);
    let (mut own_us, mut us) = (f64::MAX, f64::MAX);
    for count in [5, 30, 2] {
        let (mut own, prompt) = ((model.make)(&weights)?, prompt(count, device)?);
        let (mut expected, mut got) = (own.forward(&prompt, 0)?, fast.forward(&prompt, 0)?);
        for at in count as usize..CAPACITY {
            let (of_own, of_fast) = (last(&expected)?, last(&got)?);
            apart = apart.max(relative_error(&of_fast, &of_own)?);
            let token = of_own.argmax(D::Minus1)?;
            same_tokens += usize::from(of_fast.argmax(D::Minus1)?.to_scalar::<u32>()? == token.to_scalar::<u32>()?);
            tokens += 1;
            let token = token.reshape((1, 1))?;
            device.synchronize()?;
            let start = Instant::now();
            expected = own.forward(&token, at)?;
            device.synchronize()?;
            let middle = Instant::now();
            got = fast.forward(&token, at)?;
            device.synchronize()?;
            own_us = own_us.min((middle - start).as_secs_f64() * 1e6);
            us = us.min(middle.elapsed().as_secs_f64() * 1e6);
        }
        is_replayed &= format!("{fast:?}").contains("is_replayed: true");
    }
    // A prompt is read in pieces, or by the module.
    let prompt = prompt(30, device)?;
    let (mut own_prompt_us, mut prompt_us) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let mut own = (model.make)(&weights)?;
        device.synchronize()?;
        let start = Instant::now();
        own.forward(&prompt, 0)?;
        device.synchronize()?;
        let middle = Instant::now();
        fast.forward(&prompt, 0)?;
        device.synchronize()?;
        own_prompt_us = own_prompt_us.min((middle - start).as_secs_f64() * 1e6);
        prompt_us = prompt_us.min(middle.elapsed().as_secs_f64() * 1e6);
    }
    let prompt_refused = fast.several_refused().map(String::from);
    let refused = fast.refused().map(String::from);
    Ok(Outcome {
        refused,
        is_replayed,
        apart,
        same_tokens,
        tokens,
        own_us,
        us,
        prompt_refused,
        own_prompt_us,
        prompt_us,
    })
}

#[test]
fn every_decoder_gives_the_modules_logits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let chosen = std::env::var("OPARA_DECODERS").unwrap_or_default();
    let mut wrong = Vec::new();
    let all = MODELS.iter().chain(beside::MODELS).chain(quantised::MODELS);
    for model in all.filter(|model| chosen.is_empty() || chosen.split(',').any(|name| name == model.name)) {
        for &dtype in model.dtypes {
            let of = match outcome(model, dtype, &device) {
                Ok(of) => of,
                Err(error) => {
                    let error = error.to_string().lines().next().unwrap_or_default().to_string();
                    println!("{:<18} {dtype:?} ERROR {error}", model.name);
                    wrong.push(format!("{} in {dtype:?}: {error}", model.name));
                    continue;
                }
            };
            let Outcome { refused, is_replayed, apart, same_tokens, tokens, own_us, us, .. } = &of;
            let said = refused.as_deref().unwrap_or(if *is_replayed { "replayed" } else { "BUILT, NOT TAKEN OVER" });
            println!(
                "{:<18} {dtype:?} {apart:.1e} tokens {same_tokens}/{tokens} {own_us:.0} us own {us:.0} us | {said} | prompt {:.0} \
                 us own {:.0} us {}",
                model.name,
                of.own_prompt_us,
                of.prompt_us,
                of.prompt_refused.as_deref().unwrap_or("in pieces")
            );
            let tolerance = if dtype == DType::F32 { model.tolerance } else { 2e-2 };
            let is_expected = match (model.refused, refused) {
                (None, None) => *is_replayed,
                (Some(part), Some(reason)) => reason.contains(part),
                _ => false,
            };
            if !is_expected || apart.is_nan() || *apart > tolerance {
                wrong.push(format!("{} in {dtype:?}: {apart} apart, {said}", model.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
