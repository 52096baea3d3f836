//! Click prediction with DeepFM, replayed as one parallel schedule: reads a table of categories, prints probabilities.
//!
//!     cargo run --release --features cuda --example deepfm -- --batch 64 --repeat 100 --out clicks.csv

use std::fs::File;
use std::io::{stderr, Write};
use std::path::PathBuf;
use std::time::Instant;

use std::process::ExitCode;

use anyhow::{Context, Result};
use candle::{DType, Module, Tensor};
use clap::builder::RangedU64ValueParser;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use opara_examples::{check_writable, exit_code, Categories, Model, Options, Show};
use opara_models::deepfm::{Config, DeepFm};
use opara_weights::{Checkpoint, Loaded};

/// Predicts clicks with DeepFM.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    show: Show,

    /// Run through the table's rows this many times.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    repeat: usize,

    /// Number of ids per field if there is no config.json.
    #[arg(long, default_value_t = 10_000, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    ids: usize,

    /// Write the probabilities to this CSV file.
    #[arg(long)]
    out: Option<PathBuf>,

    /// CSV file with a header line and one column per field. Its texts are hashed to ids.
    #[arg(default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/clicks.csv"))]
    table: PathBuf,
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let options = &args.options;
    options.start();

    args.out.as_deref().map_or(Ok(()), check_writable)?;
    let named = || format!("cannot read the table {}", args.table.display());
    let table = File::open(&args.table).map_err(Into::into).and_then(Categories::read).with_context(named)?;
    let device = options.device();
    let checkpoint = options.checkpoint()?;
    let default = || Config { field_sizes: vec![args.ids; table.columns().len()], ..Config::criteo() };
    let config = options.config(checkpoint.as_ref(), Checkpoint::config, default)?;
    let check = |loaded: &Loaded| loaded.check(|_| false);
    let model = Model::of(options.load(checkpoint.as_ref(), &device, |vb| DeepFm::load(vb, &config), check)?);

    // All batches are filled up to one size, so that one schedule fits all.
    let batch = |start: usize| -> Result<Tensor> {
        let ids = table.ids(&config.field_sizes, start, options.batch).with_context(named)?;
        Ok(Tensor::from_vec(ids, (options.batch, config.field_sizes.len()), &device)?)
    };
    let example = [batch(0)?];
    let fast = model.executor(options.builder(), &example)?;

    let rows = table.len() * args.repeat;
    let bar =
        ProgressBar::new(rows as u64).with_style(ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec}")?);
    let mut out = csv::Writer::from_writer(match &args.out {
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?) as Box<dyn Write>,
        None => options.out(),
    });
    out.write_record(["row", "probability"])?;
    let started = Instant::now();
    for start in (0..rows).step_by(options.batch) {
        let probabilities = fast.forward(&batch(start)?)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        for (row, probability) in (start..rows).zip(probabilities) {
            out.write_record([(row + 1).to_string(), format!("{probability:.6}")])?;
            bar.inc(1);
        }
    }
    out.flush()?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{rows} rows in {seconds:.3} s: {:.0} a second, with reading and writing", rows as f64 / seconds);

    args.show.run(stderr(), options, &model, &fast, &example)
}
