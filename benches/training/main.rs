//! Times a step of training: forward, backward and AdamW, by candle alone, by candle with this library's optimizer, and captured as one
//! graph, exact and accurate. All take the same steps from the same weights; the losses stand beside the times.
//!
//!     cargo run --release --features cudnn,zoo --example training -- --only bert-base --dtype bf16 --batch 8 --json training.jsonl
//!
//! `benches/peers/python/train.py` has the same models in PyTorch. It begins with the same weights and batch, if it gets the file that
//! `--start` writes. Without a GPU steps are eager.

mod models;
mod weights;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, Context, Result};
use candle::{DType, Device, Tensor};
use candle_nn::{Optimizer, ParamsAdamW};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::Parser;
use opara_candle::device_memory::watch;
use opara_candle::optim::AdamW;
use opara_candle::plan::timeline::Timeline;
use opara_candle::plan::trace::{Measured, Trace};
use opara_candle::{Numerics, OparaExecutor};
use opara_examples::{exit_code, types};
use serde_json::{json, Value};

use crate::models::{trained, Loss, Model, MODELS};
use crate::weights::seeded;

#[derive(Parser)]
struct Args {
    /// Models to train; by default all.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(MODELS.map(|model| model.name)))]
    only: Vec<String>,

    /// Dtype of weights and activations.
    #[arg(long, default_value = "f32", value_parser = types(["f32", "f16", "bf16", "f64"]))]
    dtype: DType,

    /// Items of a batch.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,

    /// Contestants: candle, optimizer, exact, accurate.
    #[arg(long, value_delimiter = ',', default_values = CONTESTANTS, value_parser = PossibleValuesParser::new(CONTESTANTS))]
    contestants: Vec<String>,

    /// Steps of each contestant; by default 30, or one without a GPU. The first is not timed.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    steps: Option<usize>,

    /// `Builder::memory_factor` of captured steps: of accurate ones a multiple of the memory that launches need one after the other.
    #[arg(long)]
    memory_factor: Option<f64>,

    /// Write the first weights and the batch of one model to this file of safetensors, and end: PyTorch begins with them, too.
    #[arg(long, conflicts_with_all = ["contestants", "steps", "traces", "kernels", "json"])]
    start: Option<PathBuf>,

    /// Folder for the trace of each captured step, with the time of each launch and of each scheduler's replay, for the program `opara`.
    #[arg(long)]
    traces: Option<PathBuf>,

    /// Say of captured steps which kernels run how long.
    #[arg(long)]
    kernels: bool,

    /// File to write one line of JSON a contestant to.
    #[arg(long)]
    json: Option<PathBuf>,
}

const CONTESTANTS: [&str; 4] = ["candle", "optimizer", "exact", "accurate"];

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let device = opara_candle::cuda_device(0).unwrap_or(Device::Cpu);
    if let Some(path) = &args.start {
        let [name] = &args.only[..] else { bail!("a file of --start is of one model: name one with --only") };
        let model = MODELS.iter().find(|model| model.name == name).context("no model has this name")?;
        let (weights, _) = seeded(model, args.dtype, &device)?;
        let batch = (model.batch)(args.batch, args.dtype, &device)?;
        return weights::write(path, &weights, &batch).context("the file of --start");
    }
    let mut file = args.json.as_ref().map(|path| File::create(path).context("the file of --json")).transpose()?;
    for model in MODELS.iter().filter(|model| args.only.is_empty() || args.only.iter().any(|name| name == model.name)) {
        for contestant in &args.contestants {
            let line = measured(model, contestant, &args, &device);
            let mut line = line.unwrap_or_else(|error| json!({ "failed": error.to_string() }));
            (line["model"], line["contestant"]) = (model.name.into(), contestant.as_str().into());
            (line["dtype"], line["batch"]) = (args.dtype.as_str().into(), args.batch.into());
            println!("{line}");
            if let Some(file) = &mut file {
                writeln!(file, "{line}")?;
            }
        }
    }
    Ok(())
}

/// Times a contestant on a model of its own. All models have the same weights.
fn measured(model: &Model, contestant: &str, args: &Args, device: &Device) -> Result<Value> {
    let before = in_use(device)?;
    let (weights, loss) = seeded(model, args.dtype, device)?;
    let batch = (model.batch)(args.batch, args.dtype, device)?;
    let params = ParamsAdamW { lr: 1e-4, ..Default::default() };
    let trained = trained(&weights)?;
    match contestant {
        "candle" => {
            let all = trained.into_iter().map(|(_, variable)| variable).collect();
            timed_eagerly(args, device, before, (&loss, &batch), candle_nn::AdamW::new(all, params)?)
        }
        "optimizer" => timed_eagerly(args, device, before, (&loss, &batch), AdamW::of_named(trained, params)?),
        numerics => {
            let numerics = if numerics == "exact" { Numerics::Exact } else { Numerics::Accurate };
            let (optimizer, begin) = (AdamW::of_named(trained, params)?, Instant::now());
            let mut builder = OparaExecutor::builder().numerics(numerics);
            if let Some(factor) = args.memory_factor {
                builder = builder.memory_factor(factor);
            }
            let mut trainer = builder.build_train(move |batch: &[Tensor]| loss(batch), &optimizer, &batch)?;
            let built_s = begin.elapsed().as_secs_f64();
            let mut line = timed(args, device, before, || Ok(trainer.step(&batch)?))?;
            line["built_s"] = built_s.into();
            if let Some(report) = trainer.report() {
                line["mode"] = format!("{:?}", report.mode()).to_lowercase().into();
                line["reason"] = report.reason().into();
                line["gpu_ms"] = (report.replay_us() / 1e3).into();
                line["launches"] = report.counts().ops.into();
                line["arena_mib"] = (report.counts().arena_bytes >> 20).into();
            }
            if let Some(folder) = &args.traces {
                let trace = trainer.measure(&batch)?;
                let ms = |of: &Measured| (of.schedule.clone(), json!(of.nanos as f64 / 1e6));
                line["schedules_ms"] = Value::Object(trace.measured.iter().map(ms).collect());
                std::fs::create_dir_all(folder)?;
                let name = format!("{}-{}-{}-{contestant}.trace", model.name, args.dtype.as_str(), args.batch);
                trace.write_to(BufWriter::new(File::create(folder.join(name))?))?;
            }
            if args.kernels && device.is_cuda() {
                line["kernels"] = trainer.timeline(&batch).map_or_else(|error| error.to_string().into(), kernels);
            }
            Ok(line)
        }
    }
}

/// [`timed`] steps of candle's backward pass and an optimizer.
fn timed_eagerly(
    args: &Args,
    device: &Device,
    before: u64,
    (loss, batch): (&Loss, &[Tensor]),
    mut optimizer: impl Optimizer,
) -> Result<Value> {
    timed(args, device, before, || {
        let loss = loss(batch)?.swap_remove(0);
        optimizer.backward_step(&loss)?;
        Ok(loss)
    })
}

/// Milliseconds of a step on the clock, the loss of each, and the memory of a process that takes steps: weights, moments, gradients and
/// activations, from `before` on.
fn timed(args: &Args, device: &Device, before: u64, mut step: impl FnMut() -> Result<Tensor>) -> Result<Value> {
    let steps = args.steps.unwrap_or(if device.is_cuda() { 30 } else { 1 });
    let (mut line, usage) = watch(device, || {
        let (mut losses, mut ms) = (vec![number(&step()?)?], Vec::new());
        for _ in 1..steps {
            device.synchronize()?;
            let begin = Instant::now();
            let loss = step()?;
            device.synchronize()?;
            ms.push(begin.elapsed().as_secs_f64() * 1e3);
            losses.push(number(&loss)?);
        }
        ms.sort_by(f64::total_cmp);
        Ok::<_, anyhow::Error>(json!({ "ms": ms.get(ms.len() / 2), "losses": losses }))
    })?;
    line["peak_mib"] = usage.map(|usage| (usage.peak - before) >> 20).into();
    Ok(line)
}

/// Bytes of the device's memory pool in use.
fn in_use(device: &Device) -> Result<u64> {
    Ok(watch(device, || Ok::<_, anyhow::Error>(()))?.1.map_or(0, |usage| usage.before))
}

/// The time of a step, and for each kernel launches and microseconds, the longest first.
fn kernels((trace, timeline): (Trace, Timeline)) -> Value {
    let mut all: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for span in &timeline.spans {
        let (launches, us) = all.entry(&trace.ops[span.op].name).or_default();
        (*launches, *us) = (*launches + 1, *us + span.end_us - span.start_us);
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, (_, a)), (_, (_, b))| b.total_cmp(a));
    let busy: f64 = all.iter().map(|(_, (_, us))| us).sum();
    let of = |(name, (launches, us)): (&str, (usize, f64))| json!([name, launches, (us * 10.).round() / 10.]);
    json!({ "total_us": timeline.total_us, "sum_us": busy, "of": all.into_iter().map(of).collect::<Vec<_>>() })
}

fn number(loss: &Tensor) -> Result<f64> {
    Ok(loss.to_dtype(DType::F64)?.to_scalar()?)
}
