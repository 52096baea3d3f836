//! Runs candle-transformers' models in their published sizes, and this library's on candle's operators, with random weights, through
//! the executor. Reports how
//! each model was captured, whether outputs equal eager execution bitwise, run times, and memory use.
//!
//!     cargo run --release --features cudnn,zoo --example zoo -- --only resnet18,t5-small --replays 1000 --json zoo.jsonl
//!
//! Without a GPU each model runs one eager forward pass, which shows that its entry here is valid.
//!
//! An executor built late in a process may replay more slowly than one built early. Where a microsecond counts, run
//! each entry in a separate process (`--only`).

mod audio;
mod bits;
mod by_candle;
mod diffusion;
mod entry;
mod first_list;
mod measure;
mod memory;
mod second_list;
mod text;
mod unchanged;
mod vision;

use std::fs::File;
use std::io::{stdout, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::Instant;

use std::process::ExitCode;

use anyhow::{anyhow, Context, Error, Result};
use candle::{DType, Device};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::Parser;
use opara_candle::BuiltIn;
use opara_examples::{exit_code, types};

use crate::entry::{Entry, Model, Target};
use crate::measure::{measure, Counts, Header, Outcome, Row};
use crate::memory::{Calls, Memory};

/// Runs candle-transformers' models eagerly and replayed.
#[derive(Parser)]
struct Args {
    /// Run on the CPU even if there is a GPU: one eager pass per model.
    #[arg(long)]
    cpu: bool,

    /// Models to run; by default all.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(zoo().map(|entry| entry.name)))]
    only: Vec<String>,

    /// Dtypes of weights and activations; by default f32, and on a GPU f16 too.
    #[arg(long, value_delimiter = ',', value_parser = types(["f32", "f16", "bf16"]))]
    dtype: Vec<DType>,

    /// Forward passes to measure for each kind of execution.
    #[arg(long, default_value_t = 50, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    iters: usize,

    /// Replays to compare with eager execution bitwise.
    #[arg(long, default_value_t = 20)]
    replays: usize,

    /// Number of stress runs per schedule, in a separate executor.
    #[arg(long, default_value_t = 0)]
    stress: u64,

    /// Scheduler.
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(BuiltIn::ALL.map(BuiltIn::as_str))
        .try_map(|name| name.parse::<BuiltIn>()))]
    scheduler: BuiltIn,

    /// Do not fuse chains of candle's kernels. The sequential graph never does.
    #[arg(long)]
    no_fuse: bool,

    /// Agreement of replays with eager execution: `exact` compares bits, `accurate` allows rewriting.
    #[arg(long, default_value = "exact", value_parser = PossibleValuesParser::new(["exact", "accurate"]))]
    numerics: String,

    /// Only build executors with these numerics and measure them, without eager passes: `exact`, `accurate`, or both. The lines of
    /// `--json` then have the fields of benches/results/unchanged.json.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(["exact", "accurate"]))]
    unchanged: Vec<String>,

    /// Items in the inputs, for models of images, tokens and latent images; others refuse it, and those whose code has a batch of one
    /// fail.
    #[arg(long, default_value_t = 1, requires = "unchanged", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,

    /// Factor of convolutions' weights: random ones may amplify roundings until results of 16 bits tell nothing.
    #[arg(long, default_value_t = 1., requires = "unchanged")]
    gain: f32,

    /// Folder that keeps compiled kernels and decisions of rewriting for a second run, as `Builder::cache_folder`.
    #[arg(long, requires = "unchanged")]
    cache: Option<PathBuf>,

    /// File to write one line of JSON per row to.
    #[arg(long)]
    json: Option<PathBuf>,

    /// Do not measure memory, for which each model is made in two more processes.
    #[arg(long)]
    no_memory: bool,

    /// Print the device memory that calls take, and exit.
    #[arg(long, hide = true)]
    memory_of: Option<Calls>,

    /// Folder for traces, one file `MODEL-DTYPE.trace` each, with the times of ops where CUPTI is installed.
    #[arg(long)]
    traces: Option<PathBuf>,
}

impl Args {
    fn dtypes<'a>(&'a self, default: &'a [DType]) -> &'a [DType] {
        if self.dtype.is_empty() {
            default
        } else {
            &self.dtype
        }
    }

    /// Creates or truncates the file of `--json`.
    fn json_file(&self) -> Result<Option<File>> {
        let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        self.json.as_ref().map(create).transpose()
    }
}

/// Lists all entries.
fn zoo() -> impl Iterator<Item = &'static Entry> {
    [
        vision::ENTRIES,
        text::ENTRIES,
        diffusion::ENTRIES,
        audio::ENTRIES,
        by_candle::ENTRIES,
        first_list::ENTRIES,
        second_list::ENTRIES,
    ]
    .into_iter()
    .flatten()
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let chosen = || zoo().filter(|entry| args.only.is_empty() || args.only.iter().any(|name| name == entry.name));
    let device = if args.cpu { Err(anyhow!("--cpu")) } else { opara_candle::cuda_device(0).map_err(Into::into) };
    let device = match device {
        Ok(device) => device,
        Err(reason) => {
            eprintln!("no GPU ({reason}): one eager pass a model");
            let mut json = args.json_file()?;
            for entry in chosen() {
                for &dtype in args.dtypes(&[DType::F32]) {
                    print(&run_eager_once(entry, dtype, args.batch), json.as_mut())?;
                }
            }
            return Ok(());
        }
    };

    let counts = Counts {
        iters: args.iters,
        replays: args.replays,
        stress: args.stress,
        scheduler: args.scheduler,
        fuse: !args.no_fuse,
        is_accurate: args.numerics == "accurate",
        memory: !args.no_memory,
    };
    if let Some(calls) = args.memory_of {
        for (entry, &dtype) in chosen().flat_map(|entry| args.dtype.iter().map(move |dtype| (entry, dtype))) {
            let memory = caught(|| Memory::of_calls(calls, entry, &device, dtype, counts.builder()));
            writeln!(stdout(), "{}", serde_json::to_string(&memory.map_err(|error| message(&error)))?)?;
        }
        return Ok(());
    }

    let mut json = args.json_file()?;
    if let Some(folder) = &args.traces {
        std::fs::create_dir_all(folder).context("the folder of --traces")?;
    }
    if !args.unchanged.is_empty() {
        return run_unchanged(&args, &device, json);
    }
    writeln!(stdout(), "{Header}")?;
    for entry in chosen() {
        for &dtype in args.dtypes(&[DType::F32, DType::F16]) {
            let trace = args.traces.as_ref().map(|to| to.join(format!("{}-{}.trace", entry.name, dtype.as_str())));
            let outcome = match caught(|| measure(entry, &device, dtype, counts, trace.as_deref())) {
                Ok(measured) => Outcome::Measured(Box::new(measured)),
                Err(error) => Outcome::Failed { error: message(&error) },
            };
            let row = Row { model: entry.name, dtype: dtype.as_str(), outcome };
            print(&row, json.as_mut())?;
        }
    }
    Ok(())
}

/// Measures what `--unchanged` asks for.
fn run_unchanged(args: &Args, device: &Device, mut json: Option<File>) -> Result<()> {
    let numerics: Vec<&'static str> =
        ["exact", "accurate"].into_iter().filter(|name| args.unchanged.iter().any(|asked| asked == name)).collect();
    for entry in zoo().filter(|entry| args.only.is_empty() || args.only.iter().any(|name| name == entry.name)) {
        for &dtype in args.dtypes(&[DType::F32, DType::F16]) {
            let target = Target { device: device.clone(), dtype, batch: args.batch, gain: args.gain };
            let folders = [&args.traces, &args.cache].map(Option::as_deref);
            match caught(|| unchanged::measure(entry, &target, args.iters, &numerics, folders)) {
                Ok(row) => {
                    writeln!(stdout(), "{row}")?;
                    json.as_mut().map_or(Ok(()), |json| {
                        writeln!(json, "{}", serde_json::to_string(&row)?).map_err(Error::from)
                    })?;
                }
                Err(error) => writeln!(stdout(), "{} {}: {}", entry.name, dtype.as_str(), message(&error))?,
            }
        }
    }
    Ok(())
}

/// Prints a row on stdout, and writes it as a line of JSON to the file.
fn print(row: &Row, json: Option<&mut File>) -> Result<()> {
    writeln!(stdout(), "{row}")?;
    json.map_or(Ok(()), |json| Ok(writeln!(json, "{}", serde_json::to_string(row)?)?))
}

/// Runs one eager pass on the CPU.
fn run_eager_once(entry: &Entry, dtype: DType, batch: usize) -> Row {
    let start = Instant::now();
    let outcome = caught(|| {
        let Model { function, inputs, .. } = (entry.build)(&Target { device: Device::Cpu, dtype, batch, gain: 1. })?;
        let outputs = function(&inputs)?;
        Ok(Outcome::Ran {
            finite: bits::finite(&outputs)?,
            inputs: bits::shapes(&inputs),
            outputs: bits::shapes(&outputs),
            seconds: start.elapsed().as_secs_f64(),
        })
    });
    let outcome = outcome.unwrap_or_else(|error| Outcome::Failed { error: message(&error) });
    Row { model: entry.name, dtype: dtype.as_str(), outcome }
}

/// Formats an error in one line: candle's messages may carry a backtrace.
fn message(error: &Error) -> String {
    let causes = error.chain().map(|cause| cause.to_string().lines().next().unwrap_or_default().to_owned());
    causes.collect::<Vec<_>>().join(": ")
}

/// Runs `f` and turns a panic into an error, so that one failing model does not stop the others.
fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(anyhow!("it panicked: {}", message.unwrap_or("no message")))
    })
}
