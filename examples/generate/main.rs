//! Text generation: prints text as it is generated, and its speed.
//!
//!     cargo run --release --features cudnn --example generate -- --model FOLDER --dtype bf16 --prompt "Once upon a time"
//!
//! `--model` also takes an id on the hub, or a GGUF file. Without it the weights are random, and so is the text.

mod memory;
mod source;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use candle::quantized::GgmlDType;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::Parser;
use opara_candle::Mode;
use opara_examples::{exit_code, Options};
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{Engine, Options as EngineOptions, Request, Sampling};

use self::source::Source;

/// Generations to measure at most.
const GENERATIONS: usize = 3;

/// Text generation.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,

    /// The text to continue.
    #[arg(long, default_value = "Once upon a time")]
    prompt: String,

    /// A prompt of this many arbitrary tokens instead: for measurements.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    prompt_tokens: Option<usize>,

    /// Put the prompt into the model's chat template.
    #[arg(long)]
    chat: bool,

    /// Tokens to write.
    #[arg(long, default_value_t = 48, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,

    /// Continue after tokens that end a text: for measurements.
    #[arg(long)]
    ignore_end: bool,

    /// Temperature of sampling: 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.)]
    temperature: f32,

    /// Draw from this many of the most likely tokens; 0 for all.
    #[arg(long, default_value_t = 0)]
    top_k: u32,

    /// Draw from the most likely tokens that together have this probability.
    #[arg(long, default_value_t = 1.)]
    top_p: f32,

    /// The size of a model of random weights.
    #[arg(long, default_value = "small", value_parser = PossibleValuesParser::new(Config::names()))]
    random: String,

    /// Keep 8-bit floats of a checkpoint as they are, where the device multiplies with them.
    #[arg(long)]
    keep_fp8: bool,

    /// Quantise the matrices of a checkpoint, or of random weights, to this type of GGUF's.
    #[arg(long, value_parser = PossibleValuesParser::new(QUANTIZED.map(|(name, _)| name)))]
    quantize: Option<String>,
}

/// Types that a GPU has kernels for.
const QUANTIZED: [(&str, GgmlDType); 8] = [
    ("q4_0", GgmlDType::Q4_0),
    ("q4_1", GgmlDType::Q4_1),
    ("q5_0", GgmlDType::Q5_0),
    ("q5_1", GgmlDType::Q5_1),
    ("q8_0", GgmlDType::Q8_0),
    ("q4_k", GgmlDType::Q4K),
    ("q5_k", GgmlDType::Q5K),
    ("q6_k", GgmlDType::Q6K),
];

impl Args {
    fn quantize(&self) -> Option<GgmlDType> {
        let name = self.quantize.as_deref()?;
        QUANTIZED.into_iter().find(|(known, _)| *known == name).map(|(_, dtype)| dtype)
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
    let source = Source::find(&args)?;
    let prompt = source.prompt(&args)?;
    ensure!(!prompt.is_empty(), "the prompt has no tokens");
    let context = prompt.len() + args.tokens;
    let model = Arc::new(source.load(&args, context, &device)?);

    let drawn = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, ..Sampling::default() };
    let ends = if args.ignore_end { Vec::new() } else { source.ends() };
    let request = Request { prompt, most: args.tokens, ends, ..Request::default() };
    // Each text of a batch has its own seed, so the first text does not depend on the batch size; and its own tenant, so that each prompt is read.
    let sampling = |at| Sampling { seed: options.seed + at, ..drawn };
    let of_text = |at| Request { sampling: sampling(at), tenant: at, ..request.clone() };
    let requests: Vec<_> = (0..options.batch as u64).map(of_text).collect();
    let engine = |builder| {
        let (slots, parts) = (options.batch, options.batch);
        Engine::new(model.clone(), EngineOptions { slots, parts, builder, ..EngineOptions::default() })
    };
    let mut fast = engine(Some(options.builder()))?;

    if source.is_random() {
        writeln!(out, "token ids of random weights, which mean nothing:")?;
    }
    // Prints the first text while it is generated.
    let mut pieces = source.pieces();
    let mut failed: Result<()> = Ok(());
    let (first, _) = write(&mut fast, &requests, |index, token| {
        let shown = match index {
            0 => pieces(Some(token)).and_then(|piece| Ok(write!(out, "{piece}")?)).and_then(|()| Ok(out.flush()?)),
            _ => Ok(()),
        };
        failed = std::mem::replace(&mut failed, Ok(())).and(shown);
    })?;
    failed?;
    writeln!(out, "{}", pieces(None)?)?;

    // The first one built the graphs.
    let mut measured = Vec::new();
    for turn in 1..=options.iters.clamp(1, GENERATIONS) as u64 {
        // Other tenants', so that the prompts are read again.
        let again = |of: &Request| Request { tenant: turn * requests.len() as u64 + of.tenant, ..of.clone() };
        let requests: Vec<_> = requests.iter().map(again).collect();
        let (again, seconds) = write(&mut fast, &requests, |_, _| ())?;
        ensure!(again == first, "the same seed gave another text");
        measured.push(seconds);
    }
    let (eager, of_eager) = write(&mut engine(None)?, &requests, |_, _| ())?;
    let step = fast.reports().pop().context("there are executors")?;
    let (speeds, of_eager) = (Speeds::of(&measured, &requests), Speeds::of(&[of_eager], &requests));

    writeln!(
        out,
        "\nprompt of {} tokens, {} tokens written after it, batch {}:",
        request.prompt.len(),
        args.tokens,
        options.batch
    )?;
    for (name, speeds) in [("eager", &of_eager), ("replay", &speeds)] {
        writeln!(
            out,
            "  {name:<8}{:>9.1} ms to the first token {:>9.0} tokens/s read {:>9.1} tokens/s written {:>9.0} us a step",
            speeds.first_ms, speeds.read_per_s, speeds.written_per_s, speeds.step_us
        )?;
    }
    writeln!(out, "  memory: {}", memory::used(&device)?)?;
    writeln!(out, "\nThe step that adds a token:\n{}", step)?;
    if options.json {
        let json = serde_json::json!({
            "mode": match step.mode() { Mode::Eager => "eager", _ => "replay" },
            "tokens": first,
            "equal_to_eager": first == eager,
            "prefill_tokens_per_s": speeds.read_per_s,
            "decode_tokens_per_s": speeds.written_per_s,
            "us_per_token": speeds.step_us,
            "first_token_ms": speeds.first_ms,
            "eager_us_per_token": of_eager.step_us,
            "memory": memory::used(&device)?,
            "report": serde_json::to_value(&step)?,
        });
        writeln!(std::io::stdout(), "{json:#}")?;
    }
    Ok(())
}

/// Texts, with the seconds until the first token of each was there, and then of a step, which adds a token to each.
fn write(
    engine: &mut Engine<Decoder>,
    requests: &[Request],
    mut each: impl FnMut(usize, u32),
) -> Result<(Vec<Vec<u32>>, [f64; 2])> {
    let (start, mut reading, mut begun) = (Instant::now(), 0., vec![false; requests.len()]);
    let texts = engine.generate(requests, |index, token| {
        if !std::mem::replace(&mut begun[index], true) {
            reading = start.elapsed().as_secs_f64();
        }
        each(index, token);
    })?;
    let steps = texts.iter().map(|text| text.len().saturating_sub(1)).max().unwrap_or(0);
    let step = (start.elapsed().as_secs_f64() - reading) / steps.max(1) as f64;
    Ok((texts, [reading, step]))
}

/// Speed of generation: medians.
struct Speeds {
    first_ms: f64,
    read_per_s: f64,
    written_per_s: f64,
    step_us: f64,
}

impl Speeds {
    /// Of `requests` that took these seconds.
    fn of(measured: &[[f64; 2]], requests: &[Request]) -> Self {
        let [reading, step] = [0, 1].map(|at| {
            let mut values: Vec<f64> = measured.iter().map(|seconds| seconds[at]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        });
        let read: usize = requests.iter().map(|request| request.prompt.len()).sum();
        Self {
            first_ms: 1e3 * reading,
            read_per_s: read as f64 / reading,
            written_per_s: requests.len() as f64 / step,
            step_us: 1e6 * step,
        }
    }
}
