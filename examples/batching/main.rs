//! Continuous batching: sequences of a decoder join a batch and leave it at random, and each must write what it writes alone.
//!
//!     cargo run --release --features cudnn --example batching -- --random qwen2.5-0.5b --dtype f16 --tokens 100000 --seconds 60
//!
//! The weights are random: what is measured does not depend on them.

mod churn;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::Parser;
use fastrand::Rng;
use opara_examples::{exit_code, Options};
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{Engine, Options as EngineOptions, Request, Sampling};

use self::churn::Churn;

/// Continuous batching.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,

    /// The size of the model.
    #[arg(long, default_value = "small", value_parser = PossibleValuesParser::new(Config::names()))]
    random: String,

    /// Sequences at once.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    slots: usize,

    /// Pages of 64 tokens for all sequences. Default: enough for the longest ones. With few, sequences wait on the host.
    #[arg(long)]
    pages: Option<usize>,

    /// Parts of prompts that are read together at most, where that does not change a token.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    parts: usize,

    /// Tokens to write, by all sequences together.
    #[arg(long, default_value_t = 500)]
    tokens: usize,

    /// Seconds after which no more sequences join.
    #[arg(long, default_value_t = 60.)]
    seconds: f64,

    /// Different requests, each of which is also written alone.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    requests: usize,

    /// Tokens of the longest prompt, and of the longest answer.
    #[arg(long, default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(8..))]
    longest: usize,
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let options = &args.options;
    options.start();
    ensure!(options.model.is_none(), "this example has random weights: choose a size by --random");
    let mut out = options.out();
    let device = options.device();

    let config = Config::named(&args.random).context("the options allow known names alone")?;
    let context = 2 * args.longest;
    config.fits(if args.pages.is_some() { 1 } else { args.slots }, context, options.dtype(), &device)?;
    let load = |vb| Decoder::load(vb, &config, context).map_err(candle::Error::wrap);
    let model = Arc::new(options.load(None, &device, load, |_| Ok(()))?);
    let start = Instant::now();
    let settings = EngineOptions {
        slots: args.slots,
        most_parts: args.parts,
        pages: args.pages,
        builder: Some(options.builder()),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(model, settings)?;
    engine.build()?;
    writeln!(out, "graphs built in {:.1} s", start.elapsed().as_secs_f64())?;
    for reason in engine.eager() {
        writeln!(out, "runs eagerly: {reason}")?;
    }

    let mut rng = Rng::with_seed(options.seed);
    let requests: Vec<Request> = (0..args.requests).map(|_| request(&mut rng, &args, config.vocab as u32)).collect();
    let alone = requests.iter().map(|request| engine.generate(std::slice::from_ref(request), |_, _| ()));
    let alone = alone.map(|texts| Ok(Arc::new(texts?.remove(0)))).collect::<Result<Vec<_>>>()?;

    let mut speeds = Vec::new();
    let powers = std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|count| *count < args.slots);
    for count in powers.chain([args.slots]) {
        let speed = speed(&mut engine, args.longest, count)?;
        writeln!(out, "{count:>3} at once: {speed:>9.1} tokens/s, {:>8.0} us a step", 1e6 * count as f64 / speed)?;
        speeds.push(serde_json::json!({"sequences": count, "tokens_per_s": speed}));
    }

    let requests: Vec<_> = requests.into_iter().zip(alone).collect();
    let run = Churn::run(&mut engine, &requests, (args.tokens, args.seconds), &mut rng, &device)?;
    writeln!(
        out,
        "{} tokens of {} sequences in {:.1} s ({:.0} tokens/s with prompts), {} of them cancelled; each as alone\nmemory grew by {} KiB of the \
         host and {} KiB of the GPU",
        run.tokens,
        run.sequences,
        run.time.as_secs_f64(),
        run.tokens as f64 / run.time.as_secs_f64(),
        run.cancelled,
        run.grown[0] >> 10,
        run.grown[1] >> 10
    )?;
    writeln!(out, "{} steps ended while sequences waited on the host; all pages are free", run.waited)?;
    if options.json {
        let json = serde_json::json!({
            "equal_to_alone": true, "waited": run.waited, "speeds": speeds, "tokens": run.tokens, "sequences": run.sequences,
            "cancelled": run.cancelled, "seconds": run.time.as_secs_f64(), "host_growth_bytes": run.grown[0],
            "gpu_growth_bytes": run.grown[1],
        });
        writeln!(std::io::stdout(), "{json:#}")?;
    }
    Ok(())
}

/// Prompts of any length, drawn in any way.
fn request(rng: &mut Rng, args: &Args, vocab: u32) -> Request {
    let prompt = (0..rng.usize(1..=args.longest)).map(|_| rng.u32(0..vocab)).collect();
    let drawn = Sampling { temperature: 0.8, top_k: 50, top_p: 0.95, seed: rng.u64(..), ..Sampling::default() };
    let sampling = match rng.u32(0..3) {
        0 => Sampling::default(),
        1 => drawn,
        _ => Sampling { repetition_penalty: 1.2, ..drawn },
    };
    Request { prompt, most: rng.usize(1..=args.longest), ends: vec![rng.u32(0..vocab)], sampling, ..Request::default() }
}

/// Tokens a second of so many sequences that have all read their prompts.
fn speed(engine: &mut Engine<Decoder>, longest: usize, count: usize) -> Result<f64> {
    let of = |most: usize| -> Vec<Request> {
        let prompt: Vec<u32> = (1..=longest as u32 / 2).collect();
        vec![Request { prompt, most, ..Request::default() }; count]
    };
    // What reading takes is in both.
    let mut time = |most: usize| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            engine.generate(&of(most), |_, _| ())?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[1])
    };
    let (few, many) = (longest / 4, longest);
    Ok((count * (many - few)) as f64 / (time(many)? - time(few)?))
}
