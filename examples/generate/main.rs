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

use anyhow::{ensure, Context, Result};
use candle::quantized::GgmlDType;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::Parser;
use opara_candle::ops::Sampling;
use opara_candle::Mode;
use opara_examples::{exit_code, Options};
use opara_models::decoder::{Config, Generated, Generator};

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
    // Each text of a batch has its own seed, so the first text does not depend on the batch size.
    let sampling: Vec<_> = (0..options.batch as u64).map(|at| Sampling { seed: options.seed + at, ..drawn }).collect();
    let prompts = vec![prompt; options.batch];
    let ends = if args.ignore_end { Vec::new() } else { source.ends() };
    let mut fast = Generator::new(model.clone(), &sampling, &options.builder())?;

    if source.is_random() {
        writeln!(out, "token ids of random weights, which mean nothing:")?;
    }
    // Prints the first text while it is generated.
    let mut pieces = source.pieces();
    let mut failed: Result<()> = Ok(());
    let first = fast.generate(&prompts, args.tokens, &ends, |tokens| {
        let shown = tokens[0].map_or(Ok(()), |token| {
            write!(out, "{}", pieces(Some(token))?)?;
            Ok(out.flush()?)
        });
        failed = std::mem::replace(&mut failed, Ok(())).and(shown);
    })?;
    failed?;
    writeln!(out, "{}", pieces(None)?)?;

    let mut measured = vec![first.clone()];
    for _ in 1..options.iters.min(GENERATIONS) {
        measured.push(fast.generate(&prompts, args.tokens, &ends, |_| ())?);
    }
    ensure!(measured.iter().all(|again| again.tokens == first.tokens), "the same seed gave another text");
    let eager = Generator::eager(model, &sampling)?.generate(&prompts, args.tokens, &ends, |_| ())?;
    let (_, step) = fast.executors().context("there are executors")?;
    let speeds = Speeds::of(measured, options.batch);
    let of_eager = Speeds::of(vec![eager.clone()], options.batch);

    writeln!(
        out,
        "\nprompt of {} tokens, {} tokens written after it, batch {}:",
        first.prompt, args.tokens, options.batch
    )?;
    for (name, speeds) in [("eager", &of_eager), ("replay", &speeds)] {
        writeln!(
            out,
            "  {name:<8}{:>9.1} ms to the first token {:>9.0} tokens/s read {:>9.1} tokens/s written {:>9.0} us a step",
            speeds.first_ms, speeds.read_per_s, speeds.written_per_s, speeds.step_us
        )?;
    }
    writeln!(out, "  memory: {}", memory::used(&device)?)?;
    writeln!(out, "\nThe step that adds a token:\n{}", step.report())?;
    if options.json {
        let json = serde_json::json!({
            "mode": match step.report().mode() { Mode::Eager => "eager", _ => "replay" },
            "tokens": first.tokens,
            "equal_to_eager": first.tokens == eager.tokens,
            "prefill_tokens_per_s": speeds.read_per_s,
            "decode_tokens_per_s": speeds.written_per_s,
            "us_per_token": speeds.step_us,
            "first_token_ms": speeds.first_ms,
            "eager_us_per_token": of_eager.step_us,
            "memory": memory::used(&device)?,
            "report": serde_json::to_value(step.report())?,
        });
        writeln!(std::io::stdout(), "{json:#}")?;
    }
    Ok(())
}

/// Speed of generation: medians.
struct Speeds {
    first_ms: f64,
    read_per_s: f64,
    written_per_s: f64,
    step_us: f64,
}

impl Speeds {
    fn of(measured: Vec<Generated>, batch: usize) -> Self {
        let median = |of: &dyn Fn(&Generated) -> f64| {
            let mut values: Vec<f64> = measured.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (reading, step) =
            (median(&|of| of.reading.as_secs_f64()), median(&|of| of.writing.as_secs_f64() / of.steps.max(1) as f64));
        Self {
            first_ms: 1e3 * reading,
            read_per_s: (batch * measured[0].prompt) as f64 / reading,
            written_per_s: batch as f64 / step,
            step_us: 1e6 * step,
        }
    }
}
