//! Trains a small convolutional net and a small transformer, on data that it makes and on a text that comes with it:
//!
//!     cargo run --release --example train [-- --cpu --json]
//!     cargo run --release --features cudnn --example train -- --model bert
//!
//! Halfway it writes a checkpoint, from which another program part goes on with other weights. It tells whether the weights at the end are
//! the weights of candle's own AdamW in eager steps, and of the part that went on from the checkpoint, bit for bit.
//!
//! `--model` trains one of the models of `--example training`, unchanged from candle and with random weights, on one batch; or `lora`: changes
//! of low rank in a transformer that stays.

mod data;
mod models;
#[path = "../../benches/training/models.rs"]
mod published;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap};
use clap::builder::PossibleValuesParser;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use opara_candle::optim::AdamW;
use opara_candle::{Loader, Numerics, OparaExecutor, Trainer};
use opara_examples::variables;
use serde_json::json;

use crate::published::{trained, Loss, MODELS};

/// Trains two small models, or one.
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

    /// Train this model.
    #[arg(long, value_parser = PossibleValuesParser::new(MODELS.iter().map(|model| short(model.name)).chain(["lora"])))]
    model: Option<String>,
}

/// The first part of a model's name.
fn short(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

type Make = fn(VarBuilder) -> candle::Result<Loss>;
type Batch = Arc<dyn Fn(&[usize]) -> candle::Result<Vec<Tensor>> + Send + Sync>;

/// A model to train.
struct Task {
    name: &'static str,
    make: Make,
    /// The batch of rows of these numbers.
    batch: Batch,
    /// Has it operators without a gradient in candle?
    is_accurate: bool,
}

impl Task {
    /// The tasks that the arguments name.
    fn all(args: &Args) -> Result<Vec<Self>> {
        let net = Self {
            name: "convolutional net",
            make: |vb| {
                let net = models::Net::new(vb)?;
                Ok(Box::new(move |batch| net.loss(batch)))
            },
            batch: Arc::new(data::pictures),
            is_accurate: false,
        };
        let transformer = Self {
            name: "transformer",
            make: |vb| {
                let model = models::Transformer::new(vb)?;
                Ok(Box::new(move |batch| model.loss(batch)))
            },
            batch: Arc::new(data::windows),
            is_accurate: false,
        };
        let Some(name) = &args.model else { return Ok(vec![net, transformer]) };
        if name == "lora" {
            let make: Make = |vb| {
                let model = models::Transformer::adapted(vb)?;
                Ok(Box::new(move |batch| model.loss(batch)))
            };
            return Ok(vec![Self { name: "lora", make, ..transformer }]);
        }
        let model = MODELS.iter().find(|model| short(model.name) == name).context("no model has this name")?;
        let batch = model.batch;
        let batch: Batch = Arc::new(move |rows| Ok(batch(rows.len(), DType::F32, &Device::Cpu)?.to_vec()));
        Ok(vec![Self { name: model.name, make: model.make, batch, is_accurate: true }])
    }

    /// Batches on a device, which are the same for each.
    fn loader(&self, device: &Device) -> Loader {
        let batch = self.batch.clone();
        Loader::new(ALL_ROWS, ROWS, device, move |rows| batch(rows)).shuffle(1)
    }
}

/// Rows of a batch, and of an epoch.
const ROWS: usize = 16;
const ALL_ROWS: usize = 1024;

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

    /// With weights of its own, but for those that stay: no checkpoint has them.
    fn to_resume(task: &Task, like: &VarMap, device: &Device) -> Result<Self> {
        let model = Self::new(task, None, device)?;
        let names: HashSet<_> = trained(like)?.into_iter().map(|(name, _)| name).collect();
        for ((name, to), (_, from)) in variables(&model.weights)?.iter().zip(&variables(like)?) {
            if !names.contains(name) {
                to.set(from)?;
            }
        }
        Ok(model)
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
    for task in &Task::all(&args)? {
        let result = train(task, &args, &device)?;
        if !args.json {
            tell(&result);
        }
        results.push(result);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    }
    Ok(())
}

fn tell(result: &serde_json::Value) {
    let number = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
    println!(
        "{}: loss {:.3} to {:.3}, {:.0} steps/s; weights equal after resuming: {}",
        result["model"].as_str().unwrap_or_default(),
        number("first_loss"),
        number("last_loss"),
        number("steps_per_s"),
        result["equal_after_resume"],
    );
    if result["equal_to_eager"].is_boolean() {
        println!(
            "  eager steps with candle's AdamW: {:.0} steps/s; weights equal to theirs: {}",
            number("eager_steps_per_s"),
            result["equal_to_eager"]
        );
    }
}

fn train(task: &Task, args: &Args, device: &Device) -> Result<serde_json::Value> {
    let params = ParamsAdamW { lr: 0.003, ..Default::default() };
    let next = |batches: &mut Loader| batches.next().context("a loader has no end")?.map_err(anyhow::Error::from);
    let build = |model: Model| -> Result<(VarMap, Trainer<_>)> {
        let Model { weights, loss } = model;
        let optimizer = AdamW::of_named(trained(&weights)?, params.clone())?;
        let numerics = if task.is_accurate { Numerics::Accurate } else { Numerics::Exact };
        let builder = OparaExecutor::builder().numerics(numerics);
        let trainer = builder.build_train(loss, &optimizer, &next(&mut task.loader(device))?)?;
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
    let mut batches = task.loader(device);
    let (mut losses, began, half) = (Vec::new(), Instant::now(), args.steps / 2);
    for step in 0..args.steps {
        if step == half {
            trainer.save_with(&checkpoint, &batches)?;
        }
        let loss = trainer.step(&next(&mut batches)?)?;
        if step == 0 || step + 1 == args.steps || step % 10 == 0 {
            losses.push(loss.to_scalar::<f32>()?);
            bar.set_message(format!("loss {:.3}", losses[losses.len() - 1]));
        }
        bar.inc(1);
    }
    device.synchronize()?;
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();

    let (resumed, mut other) = build(Model::to_resume(task, &weights, device)?)?;
    let mut batches = task.loader(device);
    other.load_with(&checkpoint, &mut batches)?;
    for _ in half..args.steps {
        other.step(&next(&mut batches)?)?;
    }

    let mut result = json!({
        "model": task.name,
        "device": if device.is_cuda() { "gpu" } else { "cpu" },
        "mode": trainer.report().map_or_else(|| "eager".into(), |report| format!("{:?}", report.mode()).to_lowercase()),
        "steps": args.steps,
        "first_loss": losses.first(),
        "last_loss": losses.last(),
        "steps_per_s": args.steps as f64 / seconds,
        "equal_after_resume": are_same(&weights, &resumed)?,
    });
    // candle has no gradients of the others.
    if !task.is_accurate {
        let mut candles = candle_nn::AdamW::new(eager.weights.all_vars(), params.clone())?;
        let (mut batches, began) = (task.loader(device), Instant::now());
        for _ in 0..args.steps {
            candles.backward_step(&(eager.loss)(&next(&mut batches)?)?[0])?;
        }
        device.synchronize()?;
        result["eager_steps_per_s"] = json!(args.steps as f64 / began.elapsed().as_secs_f64());
        result["equal_to_eager"] = json!(are_same(&weights, &eager.weights)?);
    }
    Ok(result)
}
