//! Puts load on a server of `/v1/embeddings` on this machine: throughput and latencies at rising concurrency.
//!
//!     cargo run --release -p opara-serve --example load -- --url http://127.0.0.1:8000 --model bert
//!
//! Each of so many clients sends one text, waits for the answer and sends the next one. Lengths are log-normal, as those of
//! real texts are: a median of 48 words, at least `--shortest` and at most `--longest`. With `--in-process` the same texts go through an
//! embedder without a server, in batches as they come: what the server can reach at best.
//!
//! `busy` is the share of the time in which the device had a batch, and `device` the share that these batches take it by itself,
//! both from the server's `/metrics`. At saturation 100 % minus `device` is what serving adds to the device's own time; it is of
//! GPUs alone.

mod device;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use candle::{DType, Device};
use clap::Parser;
use device::{Scrape, Shares};
use opara_serve::batch::Engine;
use opara_serve::embed::{Size, TextModel};
use serde_json::json;

/// Median of lengths in words, and the deviation of their logarithm.
const MEDIAN: f64 = 48.;
const DEVIATION: f64 = 0.9;

const WORDS: [&str; 24] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "water", "people", "time", "year", "world", "city",
    "house", "music", "paper", "market", "river", "light", "story", "music",
];

/// Puts load on a server on this machine.
#[derive(Parser)]
struct Args {
    /// The server; its host must be this machine.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,

    /// The model to name.
    #[arg(long, default_value = "bert")]
    model: String,

    /// Clients at a time, step by step.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256])]
    clients: Vec<usize>,

    /// Seconds of a step, after one more for warming up.
    #[arg(long, default_value_t = 5.)]
    seconds: f64,

    /// Requests of a step at most.
    #[arg(long, default_value_t = 200_000)]
    requests: usize,

    /// Words of the shortest text: as many as of the longest for texts of one length.
    #[arg(long, default_value_t = 8)]
    shortest: usize,

    /// Words of the longest text.
    #[arg(long, default_value_t = 500)]
    longest: usize,

    /// Ask for vectors in base64, as OpenAI's own client does.
    #[arg(long)]
    base64: bool,

    /// Print one JSON object a step.
    #[arg(long)]
    json: bool,

    /// Run an embedder without a server instead, on GPU 0 or the CPU.
    #[arg(long)]
    in_process: bool,

    /// With `--in-process`: run on the CPU.
    #[arg(long)]
    cpu: bool,

    /// With `--in-process`: size of the model with random weights.
    #[arg(long, value_enum, default_value = "base")]
    size: Size,

    /// With `--in-process`: a checkpoint's folder.
    #[arg(long)]
    folder: Option<std::path::PathBuf>,

    /// With `--in-process`: type of weights and activations.
    #[arg(long, default_value = "f32")]
    dtype: String,
}

/// Threads that embed at a time with `--in-process` on a GPU.
const IN_PROCESS_THREADS: usize = 8;

/// Texts of seeded lengths and words, the same in every run.
fn texts(shortest: usize, longest: usize) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(11);
    let text = |_| {
        // Box and Muller's way to a normal number.
        let normal = (-2. * (1. - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
        let words =
            (MEDIAN * (DEVIATION * normal).exp()).round().clamp(shortest.min(longest) as f64, longest as f64) as usize;
        (0..words).map(|_| WORDS[rng.usize(..WORDS.len())]).collect::<Vec<_>>().join(" ")
    };
    (0..4_096).map(text).collect()
}

fn main() -> Result<()> {
    let args = Args::parse();
    let texts = texts(args.shortest, args.longest);
    let mut lengths: Vec<usize> = texts.iter().map(|text| text.split(' ').count()).collect();
    lengths.sort_unstable();
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share) as usize];
    if !args.json {
        println!("words of a text: median {}, 90 % {}, 99 % {}, longest {}", at(0.5), at(0.9), at(0.99), at(1.));
    }
    if args.in_process {
        return in_process(&args, &texts);
    }
    let host = args.url.strip_prefix("http://").context("the url must start with http://")?;
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    ensure!(["127.0.0.1", "localhost", "[::1]"].contains(&host), "{host} is not this machine");
    if !args.json {
        println!(
            "{:>8} {:>10} {:>12} {:>9} {:>9} {:>7} {:>8} {:>10}",
            "clients", "texts/s", "words/s", "p50, ms", "p99, ms", "errors", "busy, %", "device, %"
        );
    }
    args.clients.iter().try_for_each(|&clients| {
        let step = step(&args, &texts, clients)?;
        println!("{}", if args.json { serde_json::to_string(&step)? } else { step.to_string() });
        Ok(())
    })
}

/// What came of one step.
#[derive(serde::Serialize)]
struct Step {
    clients: usize,
    texts_per_s: f64,
    words_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: usize,
    /// `None` for a server that does not count them.
    shares: Option<Shares>,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { clients, texts_per_s, words_per_s, p50_ms, p99_ms, errors, shares } = self;
        write!(f, "{clients:>8} {texts_per_s:>10.1} {words_per_s:>12.0} {p50_ms:>9.2} {p99_ms:>9.2} {errors:>7}")?;
        match shares {
            Some(Shares { busy, .. }) => write!(f, " {:>8.1}", 100. * busy)?,
            None => write!(f, " {:>8}", "-")?,
        }
        match shares.and_then(|shares| shares.device) {
            Some(device) => write!(f, " {:>10.1}", 100. * device),
            None => write!(f, " {:>10}", "-"),
        }
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

/// One step: so many clients for some seconds, a thread each.
fn step(args: &Args, texts: &[String], clients: usize) -> Result<Step> {
    let url = format!("{}/v1/embeddings", args.url);
    let format = if args.base64 { "base64" } else { "float" };
    let body = |text: &String| json!({"model": args.model, "input": text, "encoding_format": format}).to_string();
    let bodies: Vec<(String, usize)> = texts.iter().map(|text| (body(text), text.split(' ').count())).collect();
    let (next, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Instant::now() + Duration::from_secs(1);
    let end = begin + Duration::from_secs_f64(args.seconds);
    let client = || {
        let agent = agent();
        let mut times = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            if start >= end || index >= args.requests {
                return anyhow::Ok(times);
            }
            let (body, words) = &bodies[index % bodies.len()];
            let mut reply = agent.post(&url).header("content-type", "application/json").send(body)?;
            reply.body_mut().read_to_vec()?;
            match reply.status().is_success() {
                _ if start < begin => {}
                true => times.push((start.elapsed(), *words)),
                false => _ = errors.fetch_add(1, Ordering::Relaxed),
            }
        }
    };
    let is_over = AtomicBool::new(false);
    let (times, scrapes) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let scraper = scope.spawn(|| scrapes(&args.url, begin, end, &is_over));
        let times = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
        let times = times.collect::<Result<Vec<_>>>();
        is_over.store(true, Ordering::Relaxed);
        let scrapes = scraper.join().map_err(|_| anyhow!("reading the metrics panicked"))?;
        anyhow::Ok((times?.concat(), scrapes?))
    })?;
    let mut times: Vec<(Duration, usize)> = times;
    ensure!(!times.is_empty(), "no request was answered");
    let seconds = begin.elapsed().as_secs_f64();
    let words: usize = times.iter().map(|(_, words)| words).sum();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].0.as_secs_f64() * 1e3;
    let shares = match scrapes {
        Some((first, last)) => first.shares(&last, &args.model)?,
        None => None,
    };
    Ok(Step {
        clients,
        texts_per_s: times.len() as f64 / seconds,
        words_per_s: words as f64 / seconds,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        errors: errors.into_inner(),
        shares,
    })
}

/// The metrics at the begin and at the end, or when the clients have ended before. While clients are busy a moment more or less
/// of waiting changes nothing: times are of the scrapes.
fn scrapes(url: &str, begin: Instant, end: Instant, is_over: &AtomicBool) -> Result<Option<(Scrape, Scrape)>> {
    let agent = agent();
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let Some(first) = Scrape::take(&agent, url)? else { return Ok(None) };
    while Instant::now() < end && !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10).min(end.saturating_duration_since(Instant::now())));
    }
    Ok(Scrape::take(&agent, url)?.map(|last| (first, last)))
}

/// The same texts without a server, in the server's batches, 256 texts at a time, as a full queue lets the
/// server do it. Several threads embed at a time: while one tokenizes, the device works for another.
fn in_process(args: &Args, texts: &[String]) -> Result<()> {
    let device = if args.cpu { Device::Cpu } else { opara_candle::cuda_device(0)? };
    let dtype: DType = args.dtype.parse()?;
    let model = args.folder.as_deref().map_or_else(|| Ok(TextModel::random(args.size, 0)), TextModel::open)?.cut(true);
    let threads = if args.cpu { 1 } else { IN_PROCESS_THREADS };
    let buckets = model.buckets(&device, dtype, &[], &[], None)?;
    let embedder = model.embedder(&device, dtype, &buckets)?;
    for bucket in buckets.iter() {
        embedder.prepare(bucket)?;
    }
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    let parts: Vec<&[String]> = texts.chunks(256).collect();
    let work = || {
        let (mut done, mut words) = (0, 0);
        while start.elapsed().as_secs_f64() < args.seconds {
            let texts = parts[next.fetch_add(1, Ordering::Relaxed) % parts.len()];
            embedder.embed(texts)?;
            done += texts.len();
            words += texts.iter().map(|text| text.split(' ').count()).sum::<usize>();
        }
        anyhow::Ok((done, words))
    };
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let counts = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        counts.collect::<Result<Vec<_>>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let (done, words) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    println!("in process: {:.1} texts/s, {:.0} words/s", done as f64 / seconds, words as f64 / seconds);
    Ok(())
}
