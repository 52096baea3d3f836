//! Measures one entry of the zoo in one dtype.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_candle::{Builder, BuiltIn, Mode, Numerics, OparaExecutor, Report};
use opara_examples::{Latencies, Run};
use serde::Serialize;

use crate::bits::{differing, finite, varied};
use crate::entry::{Entry, Function, Model, Target};
use crate::memory::{Calls, Memory};

/// Number of different inputs to compare on: enough to expose stale state, few enough to keep the eager outputs for
/// all.
const INPUT_SETS: usize = 20;

/// Maximum seconds of all eager passes of one measurement. candle runs a grouped convolution as one convolution per
/// group, which takes seconds for some models; they are measured with fewer passes.
const EAGER_SECONDS: f64 = 10.;

/// The parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub iters: usize,
    pub replays: usize,
    pub stress: u64,
    /// BuiltIn of the schedule that is compared with the sequential one.
    pub scheduler: BuiltIn,
    /// Are its launches fused? The sequential schedule's never are.
    pub fuse: bool,
    /// May launches be rewritten? If so, bits differ from eager execution's.
    pub is_accurate: bool,
    /// Is memory measured?
    pub memory: bool,
}

impl Counts {
    /// Builder of the executor that is compared with the sequential one. The kernel cache is off, so that build times
    /// are as in a first build.
    pub fn builder(&self) -> Builder {
        let numerics = if self.is_accurate { Numerics::Accurate } else { Numerics::Exact };
        OparaExecutor::builder().scheduler(self.scheduler).fuse(self.fuse).numerics(numerics).cache_folder(None)
    }

    /// Command line arguments that make another process use the same builder.
    fn arguments(&self) -> Vec<&'static str> {
        let fuse = if self.fuse { None } else { Some("--no-fuse") };
        let numerics = if self.is_accurate { "accurate" } else { "exact" };
        ["--scheduler", self.scheduler.as_str(), "--numerics", numerics].into_iter().chain(fuse).collect()
    }
}

/// The result for one entry in one dtype.
#[derive(Serialize)]
pub struct Row {
    pub model: &'static str,
    pub dtype: &'static str,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a measurement.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    Measured(Box<Measured>),
    /// One eager pass without a GPU.
    Ran {
        /// Are all outputs finite?
        finite: bool,
        /// Shapes of the inputs.
        inputs: String,
        /// Shapes of the outputs.
        outputs: String,
        seconds: f64,
    },
    /// The model cannot be made or run, or an executor fails where it should fall back.
    Failed {
        error: String,
    },
}

/// The measurements of a model that runs.
#[derive(Serialize)]
pub struct Measured {
    /// Are all eager outputs finite?
    finite: bool,
    /// Does eager execution give the same bits twice? Otherwise a replay cannot equal it.
    eager_repeats: bool,
    /// Measured passes of each kind.
    iters: usize,
    /// Replays compared with eager execution; none if calls run eagerly.
    replays: usize,
    /// Number of these replays that differ from eager execution.
    differing: usize,
    /// The failure of the stress run, if any.
    stress: Option<String>,
    /// Time of the scheduled graph divided by that of the sequential graph.
    ratio: Option<f64>,
    /// Build time of the scheduled executor, including the module's own passes.
    build_ms: f64,
    /// Build time without stress replays.
    own_ms: f64,
    latencies: Latencies,
    eager_memory: Memory,
    memory: Memory,
    report: Report,
}

/// Makes and measures the model. Saves its trace in the file `trace` if it is captured.
///
/// # Errors
/// An error of the model, the executors or the driver.
pub fn measure(entry: &Entry, device: &Device, dtype: DType, counts: Counts, trace: Option<&Path>) -> Result<Measured> {
    let memory = |calls| match counts.memory {
        true => Memory::of_calls_alone(calls, entry, dtype, &counts.arguments()),
        false => Ok(Memory::default()),
    };
    let (eager_memory, memory) = (memory(Calls::Eager)?, memory(Calls::Executor)?);
    let model = (entry.build)(&Target { device: device.clone(), dtype, batch: 1, gain: 1. })?;
    let Model { function, inputs, .. } = &model;

    let outputs = function(inputs)?;
    let finite = finite(&outputs)?;
    let start = Instant::now();
    let eager_repeats = differing(&outputs, &function(inputs)?)?.to_scalar::<f32>()? == 0.;
    let affordable = ((EAGER_SECONDS / start.elapsed().as_secs_f64()) as usize).max(3);
    drop(outputs);

    let scheduled = model.executor(counts.builder())?;
    let report = scheduled.report();
    let build_ms: f64 = report.build_ms().values().sum();
    let own_ms = build_ms - report.build_ms().get("forward").unwrap_or(&0.);
    let captured = report.mode() != Mode::Eager;
    if let Some(file) = trace.filter(|_| captured) {
        // Without CUPTI, without the times of ops.
        scheduled.measure(inputs).or_else(|_| scheduled.trace(inputs))?.save(file)?;
    }
    let replays = if captured && !counts.is_accurate { counts.replays } else { 0 };
    let differing = differing_replays(&scheduled, function, inputs, INPUT_SETS.min(affordable), replays)?;

    let plain = OparaExecutor::builder().scheduler(BuiltIn::Sequential).fuse(false);
    let sequential = captured.then(|| model.executor(plain)).transpose()?;
    let eager = || function(inputs);
    let zero_copy = |executor: &OparaExecutor| Ok(executor.call_zero_copy(inputs, |_| Vec::new())?);
    let scheduled_run = || zero_copy(&scheduled);
    let sequential_run = sequential.as_ref().map(|executor| move || zero_copy(executor));
    let mut runs: Vec<Run> = vec![("eager", &eager)];
    if let Some(sequential_run) = &sequential_run {
        runs.extend([("sequential", sequential_run as _), ("scheduled", &scheduled_run as _)]);
    }
    let iters = counts.iters.min(affordable);
    let latencies = Latencies::measure(device, iters, &runs)?;
    let median = |name| latencies.get(name).map(|latency| latency.median_us);
    let ratio = median("scheduled").zip(median("sequential")).map(|(scheduled, sequential)| scheduled / sequential);

    let stress = if captured && counts.stress > 0 {
        let report = model.executor(counts.builder().stress(counts.stress))?.report();
        report.reason().or((report.mode() == Mode::Eager).then_some("it runs eagerly")).map(str::to_owned)
    } else {
        None
    };

    Ok(Measured {
        finite,
        eager_repeats,
        iters,
        replays,
        differing,
        stress,
        ratio,
        build_ms,
        own_ms,
        latencies,
        eager_memory,
        memory,
        report,
    })
}

/// Counts the replays that differ from eager execution. They run on `sets` different inputs in turn.
fn differing_replays(
    executor: &OparaExecutor,
    function: &Function,
    inputs: &[Tensor],
    sets: usize,
    replays: usize,
) -> Result<usize> {
    let sets = (0..sets.min(replays)).map(|turn| {
        let inputs = varied(inputs, turn)?;
        let expected = function(&inputs)?;
        Ok((inputs, expected))
    });
    let sets = sets.collect::<Result<Vec<_>>>()?;
    let compared = sets.iter().cycle().take(replays);
    let compared =
        compared.map(|(inputs, expected)| executor.call_zero_copy(inputs, |outputs| differing(expected, outputs))?);
    let compared = compared.collect::<Result<Vec<_>>>()?;
    if compared.is_empty() {
        return Ok(0);
    }
    // Reading the counts is the only synchronization.
    let counts = Tensor::stack(&compared, 0)?.to_vec1::<f32>()?;
    Ok(counts.into_iter().filter(|&elements| elements != 0.).count())
}

/// The column heads.
pub struct Header;

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<24}{:<5}{:<7}{:>6}{:>7}{:>8}{:>6}{:>7}{:>6}  {:<9}{:>10}{:>11}{:>10}{:>7}{:>9}{:>8}{:>11}{:>11}{:>11}{:>11}",
            "model",
            "type",
            "mode",
            "ops",
            "folded",
            "streams",
            "waits",
            "edges",
            "depth",
            "bits",
            "eager us",
            "sequen. us",
            "sched. us",
            "ratio",
            "build ms",
            "own ms",
            "eager MiB",
            "replay MiB",
            "eager all",
            "replay all"
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24}{:<5}", self.model, self.dtype)?;
        match &self.outcome {
            Outcome::Ran { finite, inputs, outputs, seconds } => {
                let finite = if *finite { "finite" } else { "not finite" };
                write!(f, "{inputs} to {outputs}, {finite} ({seconds:.1} s)")
            }
            Outcome::Failed { error } => write!(f, "failed: {error}"),
            Outcome::Measured(measured) => measured.fmt(f),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { report, eager_memory, memory, .. } = self;
        let bits = match (self.replays, self.differing) {
            (0, _) => "-".into(),
            (_, 0) => "equal".into(),
            (replays, differing) => format!("{differing}/{replays}!"),
        };
        let bits = if self.stress.is_some() { "stress!".into() } else { bits };
        let count = |n: usize| if report.mode() == Mode::Eager { "-".into() } else { n.to_string() };
        let us = |name| self.latencies.get(name).map_or("-".into(), |latency| format!("{:.0}", latency.median_us));
        let mib =
            |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| format!("{:.1}", bytes as f64 / (1 << 20) as f64));
        write!(
            f,
            "{:<7}{:>6}{:>7}{:>8}{:>6}{:>7}{:>6}  {bits:<9}{:>10}{:>11}{:>10}{:>7}{:>9.0}{:>8.0}{:>11}{:>11}{:>11}{:>11}",
            report.mode().name(),
            count(report.counts().ops),
            count(report.counts().folded),
            count(report.counts().streams),
            count(report.counts().waits),
            count(report.counts().edges_reduced),
            count(report.counts().depth),
            us("eager"),
            us("sequential"),
            us("scheduled"),
            self.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            self.build_ms,
            self.own_ms,
            mib(eager_memory.peak),
            mib(memory.peak),
            mib(eager_memory.total),
            mib(memory.total)
        )?;
        let remarks = [
            report.reason().map(str::to_owned),
            self.stress.as_ref().map(|what| format!("under stress: {what}")),
            (!self.finite).then(|| "eager gives numbers that are not finite".into()),
            (!self.eager_repeats).then(|| "eager does not give the same bits twice".into()),
        ];
        let rewrites = report.rewrites().iter().map(ToString::to_string).chain(report.notes().iter().cloned());
        remarks.into_iter().flatten().chain(rewrites).try_for_each(|remark| write!(f, "\n    {remark}"))
    }
}
