//! Text-to-text generation with T5: the encoder and the decoder step are each replayed as one parallel schedule.
//!
//!     cargo run --release --features cudnn --example t5 -- --model google-t5/t5-small "translate English to German: ..."
//!
//! The task is part of the text. Decoding is greedy: it always takes the most likely token.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{ensure, Result};
use candle::Tensor;
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};
use opara_examples::{exit_code, Latencies, Model, Options, Show, Tokenizer, Tokens};
use opara_models::engine::{Engine, Options as EngineOptions, Request};
use opara_models::t5::{Config, Texts, T5};

const TEXTS: [&str; 2] = [
    "translate English to German: The house is wonderful.",
    "summarize: Many operators of a neural network are too small to fill a GPU. Those that do not depend on each other can \
     run at the same time. A schedule that is made once serves every forward pass.",
];

/// Generations of each kind to measure. A generation has one decoder pass per token.
const GENERATIONS: usize = 5;

const GIB: f64 = (1u64 << 30) as f64;

/// The maximal size in bytes of one layer's attention scores. T5's positions are relative, so only memory limits a
/// text's length.
const MAX_SCORES: f64 = 4. * GIB;

/// Generates text from text with T5.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    show: Show,

    /// Tokens per text: shorter texts are padded, longer ones truncated.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    seq_len: usize,

    /// The maximal number of output tokens.
    #[arg(long, default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_tokens: usize,

    /// Size of the model if there is no config.json.
    #[arg(long, value_enum, default_value = "small")]
    size: Size,

    /// Texts, each preceded by its task.
    texts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Tiny,
    Small,
    Base,
    Large,
    /// T5 v1.1 small, with gated feed-forward networks.
    V11Small,
}

impl Size {
    fn config(self) -> Config {
        match self {
            Size::Tiny => Config::tiny(),
            Size::Small => Config::small(),
            Size::Base => Config::base(),
            Size::Large => Config::large(),
            Size::V11Small => Config::v1_1_small(),
        }
    }
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let options = &args.options;
    options.start();
    let mut out = options.out();

    let device = options.device();
    let checkpoint = options.checkpoint()?;
    let mut config = options.config(checkpoint.as_ref(), Config::of_checkpoint, || args.size.config())?;
    for (option, tokens) in [("--seq-len", args.seq_len), ("--max-tokens", args.max_tokens)] {
        let bytes = score_bytes(options.batch, config.num_heads, tokens);
        ensure!(
            bytes <= MAX_SCORES,
            "{option} {tokens} is too long: the attention scores of one layer take {:.1} GiB, and at most {} are allowed",
            bytes / GIB,
            MAX_SCORES / GIB,
        );
    }
    let tokenizer = Tokenizer::of(checkpoint.as_ref(), config.vocab_size, args.seq_len)?;
    // A relative bias does not limit the number of positions. The engine fills inputs up.
    config.n_positions = config.n_positions.max(args.seq_len.next_multiple_of(128)).max(args.max_tokens);
    let model = options.load(checkpoint.as_ref(), &device, |vb| T5::load(vb, &config), T5::check)?;
    let model = Arc::new(model);

    let texts: Vec<&str> = match args.texts.as_slice() {
        [] => TEXTS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let batches = tokenizer.batches(&texts, options.batch, &device)?;
    let batches: Vec<[Tensor; 2]> = batches.into_iter().map(|Tokens { ids, mask }| [ids, mask]).collect();
    let requests = batches.iter().map(|batch| requests(batch, &config, args.max_tokens));
    let requests = requests.collect::<Result<Vec<_>>>()?.concat();
    let writer = Arc::new(Texts::new(model.clone(), args.seq_len, args.max_tokens)?);
    let engine = |builder| {
        let (slots, parts) = (options.batch, options.batch);
        Engine::new(writer.clone(), EngineOptions { slots, parts, builder, ..EngineOptions::default() })
    };
    let mut replayed = engine(Some(options.builder()))?;
    let outputs = replayed.generate(&requests, |_, _| ())?;
    if checkpoint.is_none() {
        writeln!(out, "token ids of random weights, which mean nothing:")?;
    }
    for (text, output) in texts.iter().zip(&outputs) {
        writeln!(out, "{text}\n    -> {}", tokenizer.decode(output)?)?;
    }

    let example = &batches[0];
    let encoder = {
        let model = model.clone();
        Model::new(move |x| Ok(vec![model.encoder().forward(&x[0], Some(&x[1]))?]))
    };
    let fast = encoder.executor(options.builder(), example)?;
    writeln!(out, "\nThe encoder, {} x {} tokens:", options.batch, args.seq_len)?;
    args.show.run(&mut out, options, &encoder, &fast, example)?;

    let requests = &requests[..options.batch];
    let [of_eager, of_replay] = [engine(None)?, replayed].map(RefCell::new);
    let write = |engine: &RefCell<Engine<Texts>>| match engine.borrow_mut().generate(requests, |_, _| ()) {
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(candle::Error::wrap(error)),
    };
    let (eager, replay) = (|| write(&of_eager), || write(&of_replay));
    let iters = options.iters.min(GENERATIONS);
    let latencies = Latencies::measure(&device, iters, &[("eager", &eager), ("replay", &replay)])?;
    // An output that ended early took one more pass, for its end token.
    let passes = outputs.iter().take(options.batch).map(|output| (output.len() + 1).min(args.max_tokens)).max();
    let passes = passes.unwrap_or(1) as f64;
    writeln!(out, "\nA whole output, {passes} tokens:\n{latencies}")?;
    if let (Some(eager), Some(replay)) = (latencies.get("eager"), latencies.get("replay")) {
        let (eager, replay) = (eager.median_us / passes, replay.median_us / passes);
        writeln!(out, "a token: {eager:.0} us eager, {replay:.0} us replayed, encoder included")?;
    }
    if let Some(step) = of_replay.borrow().reports().last() {
        writeln!(out, "\nThe step that adds a token:\n{step}")?;
    }
    Ok(())
}

/// A request for the output of each text of a batch.
fn requests([ids, mask]: &[Tensor; 2], config: &Config, most: usize) -> Result<Vec<Request>> {
    let (ids, mask) = (ids.to_vec2::<u32>()?, mask.to_vec2::<u32>()?);
    let own = |(ids, mask): (Vec<u32>, Vec<u32>)| {
        let own = ids.into_iter().zip(mask).filter(|(_, is_own)| *is_own == 1);
        let prompt = own.map(|(id, _)| id).collect();
        Request { prompt, most, ends: vec![config.eos_token_id], ..Request::default() }
    };
    Ok(ids.into_iter().zip(mask).map(own).collect())
}

/// Computes the bytes of one layer's attention scores in f32.
fn score_bytes(batch: usize, heads: usize, tokens: usize) -> f64 {
    let scores = [batch, heads, tokens, tokens].map(|size| size as f64);
    4. * scores.iter().product::<f64>()
}
