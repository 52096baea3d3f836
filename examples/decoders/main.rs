//! Decoders of candle-transformers in published sizes, with random weights and without a change: the time of a prompt and of a token,
//! as they are and replayed (`Builder::build_decoder`).
//!
//!     cargo run --release --features cudnn --example decoders -- --only qwen2-0.5b --dtype f16 --json decoders.jsonl
//!
//! Both write behind the same prompt. The model's own tokens are given to both, so that a difference of a logit cannot lead them
//! apart; what is compared are the logits. Without a GPU each model takes one prompt and one step. Quantised ones come from GGUF files
//! that are written first; this library's own decoder reads the same file.

mod gguf;
mod models;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use candle::{DType, Device, Tensor, D};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::Parser;
use opara_candle::{Error, OparaExecutor};
use opara_examples::{exit_code, relative_error, types};
use serde_json::json;

use crate::models::{Decode, Model, MODELS};

#[derive(Parser)]
struct Args {
    /// Run on the CPU even if there is a GPU.
    #[arg(long)]
    cpu: bool,

    /// Models to run; by default all.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(all().map(|model| model.name)))]
    only: Vec<String>,

    /// Dtype of weights and activations.
    #[arg(long, default_value = "f16", value_parser = types(["f32", "f16", "bf16"]))]
    dtype: DType,

    /// Tokens of the prompt.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(2..))]
    prompt_tokens: usize,

    /// Tokens to write.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(3..))]
    tokens: usize,

    /// File to write one line of JSON a model to.
    #[arg(long)]
    json: Option<PathBuf>,

    /// Folder that keeps a copy of each GGUF file, NAME.gguf, for other programs to be timed with.
    #[arg(long)]
    files: Option<PathBuf>,
}

fn all() -> impl Iterator<Item = &'static Model> {
    MODELS.iter().chain(gguf::MODELS)
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let device = match args.cpu {
        true => Device::Cpu,
        false => opara_candle::cuda_device(0).unwrap_or(Device::Cpu),
    };
    let mut file = args.json.as_ref().map(|path| File::create(path).context("the file of --json")).transpose()?;
    for model in all().filter(|model| args.only.is_empty() || args.only.iter().any(|name| name == model.name)) {
        let made = (model.make)(args.dtype, &device);
        if let (Some(folder), Ok(Decode { file: Some(file), .. })) = (&args.files, &made) {
            file.keep(&folder.join(format!("{}.gguf", model.name)))?;
        }
        let line = match made.and_then(|decode| measured(&args, &device, decode)) {
            Ok(line) => line,
            Err(error) => json!({ "failed": error.to_string().lines().next() }),
        };
        println!("{:<16} {:<5} {line}", model.name, args.dtype.as_str());
        if let Some(file) = &mut file {
            let mut line = line;
            (line["model"], line["dtype"]) = (model.name.into(), args.dtype.as_str().into());
            writeln!(file, "{line}")?;
        }
    }
    Ok(())
}

/// The largest logit's token, `(1, 1)`.
fn next(logits: &Tensor) -> Result<Tensor> {
    Ok(logits.flatten_all()?.argmax(D::Minus1)?.reshape((1, 1))?)
}

/// What is said of a model.
fn measured(args: &Args, device: &Device, decode: Decode) -> Result<serde_json::Value> {
    let Args { prompt_tokens, tokens, .. } = *args;
    let tokens = if device.is_cuda() { tokens } else { 1 };
    let prompt = Tensor::arange(1u32, prompt_tokens as u32 + 1, device)?.unsqueeze(0)?;
    let mut own = decode.text();
    // The first steps load kernels.
    let mut token = next(&own(&prompt, 0)?)?;
    let mut given = vec![token.clone()];
    let mut answers = Vec::new();
    let (mut seconds, mut replayed) = (Vec::new(), Vec::new());
    for at in 0..tokens {
        let begin = Instant::now();
        let logits = own(&token, prompt_tokens + at)?;
        token = next(&logits)?;
        // As a program that prints tokens.
        token.flatten_all()?.to_vec1::<u32>()?;
        seconds.push(begin.elapsed().as_secs_f64());
        given.push(token.clone());
        answers.push(logits);
    }
    drop(own);
    let own_us = median(&mut seconds[1..]) * 1e6;
    let own_prompt_ms = prompt_ms(device, || Ok(decode.text()(&prompt, 0)?))?;
    let library = match &decode.file {
        Some(file) if device.is_cuda() => Some(gguf::own_us(file, prompt_tokens, tokens, device)?),
        _ => None,
    };

    let begin = Instant::now();
    let mut fast = match decode.executor(OparaExecutor::builder(), &prompt, prompt_tokens + tokens + 4) {
        Err(Error::Candle(error)) => anyhow::bail!("{error}"),
        built => built?,
    };
    let built_s = begin.elapsed().as_secs_f64();
    if let Some(reason) = fast.refused() {
        return Ok(json!({ "candle_us": own_us, "library_us": library, "refused": reason }));
    }
    let mut apart: f32 = 0.;
    for round in 0..2 {
        fast.forward(&prompt, 0)?;
        for (at, (token, expected)) in given.iter().zip(&answers).enumerate() {
            let begin = Instant::now();
            let logits = fast.forward(token, prompt_tokens + at)?;
            next(&logits)?.flatten_all()?.to_vec1::<u32>()?;
            if round == 1 {
                replayed.push(begin.elapsed().as_secs_f64());
            } else {
                apart = apart.max(relative_error(&logits, expected)?);
            }
        }
    }
    let first_ms = replayed[0] * 1e3;
    let report = fast.report();
    let rewrites = report.as_ref().map(|report| {
        report
            .rewrites()
            .iter()
            .map(|of| (of.rule.to_string(), of.times.into()))
            .collect::<serde_json::Map<_, serde_json::Value>>()
    });
    let fast_prompt_ms = prompt_ms(device, || Ok(fast.forward(&prompt, 0)?))?;
    Ok(json!({
        "candle_prompt_ms": own_prompt_ms, "prompt_ms": fast_prompt_ms, "prompt_refused": fast.several_refused(),
        "candle_us": own_us, "library_us": library, "us": median(&mut replayed[1..]) * 1e6, "step_us": report.as_ref().map(|report| report.replay_us()),
        "launches": report.as_ref().map(|report| report.counts().ops), "rewrites": rewrites, "notes": report.as_ref().map(|report| report.notes()), "logits_apart": apart, "first_step_ms": first_ms, "built_s": built_s,
    }))
}

/// Milliseconds until a prompt is read, as seen by the host; on a CPU one reading's.
fn prompt_ms(device: &Device, mut read: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut seconds = Vec::new();
    for _ in 0..if device.is_cuda() { 5 } else { 1 } {
        device.synchronize()?;
        let begin = Instant::now();
        read()?;
        device.synchronize()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(&mut seconds) * 1e3)
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}
