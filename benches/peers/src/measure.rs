//! `peers measure`: measures this library and its peers on one machine in one run.

use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};
use candle::Device;
use opara_candle::SpanLabels;
use opara_examples::{check_writable, warnings};
use opara_peers::results::{Cell, Results, Run};
use tracing_subscriber::prelude::*;

use crate::bench::Bench;
use crate::cell::{Benchmark, Turns};
use crate::gpu::Gpu;
use crate::machine;
use crate::own;
use crate::parts::Parts;
use crate::peer::{Framework, Launch, FRAMEWORKS};

/// Measures this library and its peers in turns, on the first GPU.
///
/// Each model has the same seeded weights and the same input everywhere; outputs are compared before anything is timed.
/// TF32 is allowed in convolutions and not in matmuls. A peer that is not installed is reported as absent.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    parts: Parts,

    #[command(flatten)]
    turns: Turns,

    /// Batch sizes at which the kernels of replays are timed, too.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    kernels: Vec<usize>,

    #[command(flatten)]
    launch: Launch,

    /// Measure on the CPU, where a scheduler runs on worker threads.
    #[arg(long)]
    cpu: bool,

    /// The commit that is measured; default: that of the git checkout.
    #[arg(long)]
    commit: Option<String>,

    /// Output file, which is written after each cell.
    #[arg(short, long)]
    output: PathBuf,
}

impl Args {
    /// Measures.
    ///
    /// # Errors
    /// No GPU, models that cannot be built, a file that cannot be written. An error of a contestant is its outcome.
    pub fn run(&self) -> Result<()> {
        ensure!(self.parts.batches.iter().all(|&batch| batch > 0), "a batch has at least one item");
        // Before measurements take hours.
        check_writable(&self.output)?;
        tracing_subscriber::registry().with(warnings()).with(SpanLabels).init();
        let device = match self.cpu {
            true => Device::Cpu,
            false => opara_candle::cuda_device(0).context("there is no GPU; --cpu measures on the CPU")?,
        };
        let gpu = Gpu::open();
        let mut machine = machine::of(&device, gpu.as_ref().ok(), self.commit.clone());
        let mut frameworks = Vec::new();
        for name in FRAMEWORKS.into_iter().filter(|framework| self.parts.wants_any_of(framework)) {
            match Framework::start(&self.launch, name) {
                Ok(framework) => {
                    machine.versions.extend(framework.versions().clone());
                    frameworks.push(framework);
                }
                Err(error) => {
                    eprintln!("{name} is absent: {error:#}");
                    machine.absent.insert(name.into(), format!("{error:#}"));
                }
            }
        }
        self.check_names(&frameworks)?;
        let mut results = Results::new(vec![Run { machine, turn: self.turns.turn.into(), cells: Vec::new() }]);
        for (model, dtype) in self.parts.models() {
            let mut bench = Bench::new(model, dtype, &device, &mut frameworks);
            for key in self.parts.keys(model, dtype) {
                let timed = |benchmark: &mut Benchmark| {
                    benchmark.run(&self.turns);
                    gpu.iter().for_each(|gpu| benchmark.watch(gpu));
                };
                let contestants = bench.benchmark(&key, |name| self.parts.wants(name), timed)?;
                results.runs[0].cells.push(Cell { key, contestants });
                results.save(&self.output)?;
            }
        }
        // Last, since a contestant may be slower after it was profiled.
        for (model, dtype) in self.parts.models() {
            let mut bench = Bench::new(model, dtype, &device, &mut frameworks);
            for key in self.parts.keys(model, dtype).filter(|key| !self.cpu && self.kernels.contains(&key.batch)) {
                // Contestants that could not be measured are not tried again.
                let timed = results.runs[0].cells.iter().find(|cell| cell.key == key);
                let wanted =
                    |name: &str| PROFILED.contains(&name) && timed.is_some_and(|cell| cell.measured(name).is_some());
                let profiled = bench.benchmark(&key, wanted, Benchmark::profile)?;
                results.runs[0].add_kernels(&key, profiled);
                results.save(&self.output)?;
            }
        }
        Ok(())
    }

    /// A name that no contestant has is an error, unless it belongs to an absent framework.
    fn check_names(&self, frameworks: &[Framework]) -> Result<()> {
        let known: Vec<String> =
            own::names().chain(frameworks.iter().flat_map(|f| f.modes().map(|(name, _)| name))).collect();
        let is_peer = |name: &str| FRAMEWORKS.iter().any(|framework| name.starts_with(framework));
        match self.parts.named().iter().find(|name| !known.contains(name) && !is_peer(name)) {
            Some(name) => bail!("there is no contestant {name:?}, but {}", known.join(", ")),
            None => Ok(()),
        }
    }
}

/// Contestants whose kernels are timed. Of contestants that replay the same kernels in another order, only one is.
const PROFILED: [&str; 7] = [
    own::CANDLE_TUNED,
    "sequential",
    "tuned",
    "torch graph",
    "torch reduce-overhead",
    "torch max-autotune",
    "onnxruntime graph",
];
