//! Runs executors for minutes as an application would: sixteen threads on one device, with every output checked.
//!
//!     cargo run --release --features cudnn,soak --example soak -- --seconds 600
//!     cargo run --release --example soak -- --cpu --seconds 10
//!     cargo run --release --features cudnn,soak --example soak -- --devices
//!
//! Some threads run plain candle code. Some call shared executors with changing shapes. Some build, call, evict and
//! drop their own executors and borrow their outputs. Some are short-lived and keep tensors in their thread-locals. The
//! expected outputs are computed by the modules themselves before any executor is built.
//!
//! The sequence of operations of each thread follows from the seed; their number depends on time. Memory is measured at
//! the start, in the middle and at the end, each time while no other thread runs. The exit code is 1 after a wrong
//! value, an error, a thread that hangs, or growth from the middle to the end beyond the bounds in `memory`.

mod builds;
mod calls;
mod devices;
mod fleeting;
mod memory;
mod modules;
mod plain;
mod report;
mod tally;
mod workers;
mod world;

use std::io::stderr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use candle::Device;
use clap::builder::RangedU64ValueParser;
use clap::Parser;
use opara_candle::SpanLabels;
use opara_examples::exit_code;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use crate::memory::Memory;
use crate::report::Report;
use crate::tally::Tally;
use crate::workers::{Plan, Role};
use crate::world::World;

/// Runs executors beside plain candle code on many threads and checks every output.
#[derive(Parser)]
struct Args {
    /// Duration of the run in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..))]
    seconds: u64,

    /// Number of threads, all roles together.
    #[arg(long, default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: usize,

    /// Let only threads of these roles work, to see the cost of the others or to find a memory leak.
    #[arg(long, value_delimiter = ',', conflicts_with = "devices")]
    only: Vec<Role>,

    /// Seed of the threads' operations.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Print the report as JSON on stdout.
    #[arg(long)]
    json: bool,

    /// Run on the CPU even where there is a GPU.
    #[arg(long, conflicts_with = "devices")]
    cpu: bool,

    /// Instead of all that, measure forward passes per second beside five threads that upload and read back, on a
    /// device of `opara_candle::cuda_device` and on candle's own devices, without any executor.
    #[arg(long)]
    devices: bool,

    /// Print the library's warnings, such as why modules run eagerly, on stderr.
    #[arg(long)]
    warnings: bool,
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| exit_code(Err(error)))
}

fn run() -> Result<ExitCode> {
    let args = Args::parse();
    let level = if args.warnings { LevelFilter::WARN } else { LevelFilter::OFF };
    let warnings = tracing_subscriber::fmt::layer().with_writer(stderr).with_filter(level);
    tracing_subscriber::registry().with(SpanLabels).with(warnings).init();
    let seconds = Duration::from_secs(args.seconds);
    if args.devices {
        devices::compare(seconds, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let device = match args.cpu {
        true => Device::Cpu,
        false => opara_candle::cuda_device(0).context("there is no GPU to use; --cpu runs on the CPU")?,
    };
    let report = soak(&args, &device, seconds)?;
    report.print(args.json)?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the same work twice, with new threads for the second half.
fn soak(args: &Args, device: &Device, seconds: Duration) -> Result<Report> {
    let world = World::new(device)?;
    let start = Memory::of(device)?;
    let mut tally = Tally::default();
    let mut half = |number: u64| -> Result<Memory> {
        let plan = Plan { threads: args.threads, only: &args.only, seed: args.seed, half: number, length: seconds / 2 };
        tally.add(workers::run(&world, &plan)?);
        Memory::of(device)
    };
    let (middle, end) = (half(0)?, half(1)?);
    ensure!(tally.count() > 0, "no thread has done anything");
    let device = world.shared[0].executor.report().device().to_owned();
    Ok(Report {
        device,
        seconds: args.seconds,
        threads: args.threads,
        seed: args.seed,
        tally,
        memory: [start, middle, end],
    })
}
