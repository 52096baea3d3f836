//! Trains a small convolutional net and a small transformer, on data that it makes and on a text that comes with it:
//!
//!     cargo run --release --example train [-- --cpu --json]
//!
//! Halfway it writes a checkpoint, from which another program part goes on with other weights. It tells whether the weights at the end are
//! the weights of candle's own AdamW in eager steps, and of the part that went on from the checkpoint, bit for bit.

mod data;
mod models;

use std::time::Instant;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use opara_candle::optim::AdamW;
use opara_candle::{OparaExecutor, Trainer};
use opara_examples::variables;
use serde_json::json;

/// Trains two small models.
#[derive(Parser)]
struct Args {
    /// Train on the CPU, even if there is a GPU.
    #[arg(long)]
    cpu: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Steps of each model.
    #[arg(long, default_value_t = 60)]
    steps: usize,
}

type Loss = Box<dyn Fn(&[Tensor]) -> candle::Result<Tensor> + Send + Sync>;

/// A model to train.
struct Task {
    name: &'static str,
    make: fn(VarBuilder) -> candle::Result<Loss>,
    batch: fn(usize, usize, &Device) -> candle::Result<[Tensor; 2]>,
}

const TASKS: [Task; 2] = [
    Task {
        name: "convolutional net",
        make: |vb| {
            let net = models::Net::new(vb)?;
            Ok(Box::new(move |batch| net.loss(batch)))
        },
        batch: data::pictures,
    },
    Task {
        name: "transformer",
        make: |vb| {
            let model = models::Transformer::new(vb)?;
            Ok(Box::new(move |batch| model.loss(batch)))
        },
        batch: data::windows,
    },
];

/// Rows of a batch.
const ROWS: usize = 16;

/// A model with weights of its own.
struct Model {
    weights: VarMap,
    loss: Loss,
}

impl Model {
    /// With the weights of another one, if there is one.
    fn new(task: &Task, like: Option<&VarMap>, device: &Device) -> Result<Self> {
        let weights = VarMap::new();
        let loss = (task.make)(VarBuilder::from_varmap(&weights, DType::F32, device))?;
        if let Some(like) = like {
            let like = variables(like)?;
            for ((_, to), (_, from)) in variables(&weights)?.iter().zip(&like) {
                to.set(from)?;
            }
        }
        Ok(Self { weights, loss })
    }
}

fn are_same(a: &VarMap, b: &VarMap) -> Result<bool> {
    let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
        Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    for ((_, a), (_, b)) in variables(a)?.iter().zip(&variables(b)?) {
        if bits(a)? != bits(b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first GPU, or the CPU if that is asked for or if there is no GPU.
fn device(is_cpu: bool) -> Device {
    if is_cpu {
        return Device::Cpu;
    }
    opara_candle::cuda_device(0).unwrap_or_else(|error| {
        eprintln!("training on the CPU: {error}");
        Device::Cpu
    })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = device(args.cpu);
    let mut results = Vec::new();
    for task in &TASKS {
        let result = train(task, &args, &device)?;
        if !args.json {
            println!(
                "{}: loss {:.3} to {:.3}, {:.0} steps/s where eager steps with candle's AdamW make {:.0}; weights equal to eager's: {}, after resuming: {}",
                task.name,
                result["first_loss"].as_f64().unwrap_or(f64::NAN),
                result["last_loss"].as_f64().unwrap_or(f64::NAN),
                result["steps_per_s"].as_f64().unwrap_or(f64::NAN),
                result["eager_steps_per_s"].as_f64().unwrap_or(f64::NAN),
                result["equal_to_eager"],
                result["equal_after_resume"],
            );
        }
        results.push(result);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    }
    Ok(())
}

fn train(task: &Task, args: &Args, device: &Device) -> Result<serde_json::Value> {
    let params = ParamsAdamW { lr: 0.003, ..Default::default() };
    let build = |model: Model| -> Result<(VarMap, Trainer<_>)> {
        let Model { weights, loss } = model;
        let optimizer = AdamW::of(&weights, params.clone())?;
        let step = move |batch: &[Tensor]| Ok(vec![loss(batch)?]);
        let trainer = OparaExecutor::builder().build_train(step, &optimizer, &(task.batch)(0, ROWS, device)?)?;
        Ok((weights, trainer))
    };
    let model = Model::new(task, None, device)?;
    let eager = Model::new(task, Some(&model.weights), device)?;
    let (weights, mut trainer) = build(model)?;
    let folder = tempfile::tempdir()?;
    let checkpoint = folder.path().join("half.safetensors");

    let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new(args.steps as u64) };
    bar.set_style(ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}")?);
    bar.set_prefix(task.name);
    let (mut losses, began, half) = (Vec::new(), Instant::now(), args.steps / 2);
    for step in 0..args.steps {
        if step == half {
            trainer.save(&checkpoint)?;
        }
        let loss = trainer.step(&(task.batch)(step, ROWS, device)?)?;
        if step == 0 || step + 1 == args.steps || step % 10 == 0 {
            losses.push(loss.to_scalar::<f32>()?);
            bar.set_message(format!("loss {:.3}", losses[losses.len() - 1]));
        }
        bar.inc(1);
    }
    device.synchronize()?;
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();

    let (resumed, mut other) = build(Model::new(task, None, device)?)?;
    other.load(&checkpoint)?;
    for step in half..args.steps {
        other.step(&(task.batch)(step, ROWS, device)?)?;
    }

    let mut candles = candle_nn::AdamW::new(eager.weights.all_vars(), params.clone())?;
    let began = Instant::now();
    for step in 0..args.steps {
        candles.backward_step(&(eager.loss)(&(task.batch)(step, ROWS, device)?)?)?;
    }
    device.synchronize()?;
    let eager_seconds = began.elapsed().as_secs_f64();
    Ok(json!({
        "model": task.name,
        "device": if device.is_cuda() { "gpu" } else { "cpu" },
        "mode": trainer.report().map_or_else(|| "eager".into(), |report| format!("{:?}", report.mode()).to_lowercase()),
        "steps": args.steps,
        "first_loss": losses.first(),
        "last_loss": losses.last(),
        "steps_per_s": args.steps as f64 / seconds,
        "eager_steps_per_s": args.steps as f64 / eager_seconds,
        "equal_to_eager": are_same(&weights, &eager.weights)?,
        "equal_after_resume": are_same(&weights, &resumed)?,
    }))
}
