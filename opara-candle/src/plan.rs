//! The pipeline for one set of input shapes: record, analyse, schedule, place, replay, verify.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle::{Device, Tensor};

use crate::backend::{Example, Function, Program, Recording, Replay};
use crate::executor::{OnUncapturable, Options};
use crate::prepared::Prepared;
use crate::report::{Mode, Report};
use crate::schedule::{Policy, Schedule, Scheduler};
use crate::timing::{self, Latency, Stages};
use crate::trace::Trace;
use crate::{cpu, cuda, verify, Error, Result};

/// What answers calls of one set of input shapes.
pub(crate) struct Plan {
    /// `None` calls the module itself.
    pub replay: Option<Box<dyn Replay>>,
    pub report: Report,
    pub planned: Option<Arc<Planned>>,
}

/// What is replayed, and in which order.
#[derive(Clone)]
pub(crate) struct Planned {
    pub program: Arc<dyn Program>,
    /// As it was recorded.
    pub trace: Arc<Trace>,
    pub prepared: Arc<Prepared>,
    pub schedule: Schedule,
}

impl Planned {
    /// The trace with the median time of each op over so many replays of the sequential schedule.
    pub fn measure_ops(&self, inputs: &[Tensor], rounds: usize) -> Result<Trace> {
        let schedule = Policy::Sequential.schedule(&self.prepared.problem())?;
        let sequential = Arc::new(Planned { schedule, ..self.clone() });
        let spans = self.program.clone().spans(sequential, inputs, rounds)?;
        let mut trace = (*self.trace).clone();
        for (at, &op) in self.prepared.ops.kept.iter().enumerate() {
            let mut nanos: Vec<u64> = spans.iter().map(|spans| spans[at].1 - spans[at].0).collect();
            nanos.sort_unstable();
            trace.ops[op].nanos = nanos.get(nanos.len() / 2).copied();
        }
        Ok(trace)
    }
}

impl Plan {
    /// Builds a plan for inputs like these.
    ///
    /// # Errors
    /// The module's own, and what made a capture impossible if the options ask for that.
    pub fn build(function: &Function, inputs: &[Tensor], options: &Options, arena: &Arc<cuda::Arena>) -> Result<Plan> {
        let mut stages = Stages::default();
        let device = inputs.first().map_or(Device::Cpu, |t| t.device().clone());
        let built = stages.time("trace", || record(function, inputs, &device, arena)).and_then(|recording| {
            // Nobody may capture what trying it out launches.
            let schedule = || schedule(recording, options, &device, &mut stages);
            let built = if device.is_cuda() { cuda::while_not_capturing(schedule) } else { schedule() };
            let (replay, report, planned) = built?;
            Ok((Some(replay), report, Some(planned)))
        });
        let (replay, mut report, planned) = match built {
            Err(error) if error.is_uncapturable() && options.on_uncapturable == OnUncapturable::Eager => {
                tracing::warn!(reason = %error, "calls of these shapes run eagerly");
                (None, Report { reason: Some(error.to_string()), ..blank(options.scheduler.name()) }, None)
            }
            built => built?,
        };
        report.device = if device.is_cuda() { cuda::device_name(&device) } else { "cpu".into() };
        report.build_ms = stages.0;
        Ok(Plan { replay, report, planned })
    }
}

fn record(function: &Function, inputs: &[Tensor], device: &Device, arena: &Arc<cuda::Arena>) -> Result<Recording> {
    let recording = match device {
        Device::Cpu => cpu::record(function, inputs)?,
        Device::Cuda(_) => cuda::record(function, inputs, arena)?,
        Device::Metal(_) => {
            return Err(Error::NotCapturable { reason: "Metal devices are not supported: use CUDA or the CPU".into() })
        }
    };
    recording.trace.validate()?;
    Ok(recording)
}

/// What the stages after the trace yield.
type Built = (Box<dyn Replay>, Report, Arc<Planned>);

/// Everything after the trace; on a mismatch once more with the sequential policy.
fn schedule(recording: Recording, options: &Options, device: &Device, stages: &mut Stages) -> Result<Built> {
    let Recording { trace, examples, program } = recording;
    let trace = Arc::new(trace);
    let prepared = Arc::new(Prepared::timed(&trace, options.settings, stages));
    let problem = prepared.problem();
    let schedule = stages.time("schedule", || options.scheduler.schedule(&problem))?;
    let mut planned = Planned { program: program.clone(), trace, prepared: prepared.clone(), schedule };
    let mut reason = None;
    let mut policy = options.scheduler.name();
    loop {
        let plan = Arc::new(planned);
        if cfg!(debug_assertions) {
            stages.time("check", || prepared.check(&plan.schedule))?;
        }
        let mut replay = stages.time("capture", || program.clone().replay(plan.clone()))?;
        let sequential = Policy::Sequential.name();
        match stages.time("verify", || try_out(&mut *replay, &examples, options.verify, device)) {
            Ok(mut replay_us) => {
                for seed in 0..options.stress {
                    let stressed = program.clone().stressed(plan.clone(), seed)?;
                    stages.time("stress", || compare(&*stressed, &examples, device))?;
                }
                let mut plan = plan;
                let races = options.race && device.is_cuda() && prepared.ops.kept.len() <= RACE_OPS;
                if races && policy != sequential {
                    let schedule = Policy::Sequential.schedule(&problem)?;
                    let rival = Arc::new(Planned { schedule, ..(*plan).clone() });
                    let faster = stages.time("race", || faster(&*replay, &program, &rival, &examples, device))?;
                    if let Some((rival_replay, us)) = faster {
                        (replay, replay_us, plan, policy) = (rival_replay, us, rival, sequential);
                    }
                }
                let mut report = describe(&plan);
                report.mode = replay.mode();
                report.policy = policy;
                report.reason = reason;
                report.verified = options.verify;
                report.replay_us = replay_us;
                report.eager_us = examples.iter().map(|e| e.eager_us).fold(f64::INFINITY, f64::min);
                return Ok((replay, report, plan));
            }
            Err(error @ Error::Mismatch { .. }) if policy != sequential => {
                tracing::warn!(%error, %policy, "falling back to the sequential schedule");
                reason = Some(format!("{error}; fell back to the sequential schedule"));
                policy = sequential;
                planned = Planned { schedule: Policy::Sequential.schedule(&problem)?, ..(*plan).clone() };
            }
            Err(error) => return Err(error),
        }
    }
}

/// Launches above which a sequential schedule is not worth trying: such graphs are wide.
const RACE_OPS: usize = 4096;

/// The rival's replay with its time in microseconds, if it is faster than this one beyond noise.
fn faster(
    replay: &dyn Replay,
    program: &Arc<dyn Program>,
    rival: &Arc<Planned>,
    examples: &[Example],
    device: &Device,
) -> Result<Option<(Box<dyn Replay>, f64)>> {
    /// Of each; medians are taken.
    const SAMPLES: usize = 9;
    const NOISE: f64 = 0.99;
    let rival = program.clone().replay(rival.clone())?;
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for example in examples.iter().cycle().take(SAMPLES) {
        own.push(timed(replay, example, device)?.1);
        other.push(timed(&*rival, example, device)?.1);
    }
    let (own, other) = (Latency::of(own), Latency::of(other));
    Ok((other.median_us < own.median_us * NOISE).then_some((rival, other.min_us)))
}

/// Microseconds that comparing variants may take beyond the verification. It buys short forwards several samples each;
/// long ones need none.
const TRIAL_US: f64 = 100_000.;

/// Replays the examples, compares where asked to, and keeps the variant with the lower median. Returns the time of its
/// fastest replay in microseconds.
///
/// Variants take turns over the examples: building costs few forwards.
fn try_out(replay: &mut dyn Replay, examples: &[Example], compare: bool, device: &Device) -> Result<f64> {
    let variants = replay.variants();
    let mut samples = vec![Vec::new(); variants];
    for (i, example) in examples.iter().enumerate() {
        replay.choose(i % variants);
        let (outputs, us) = timed(replay, example, device)?;
        samples[i % variants].push(us);
        if compare {
            verify::same_bits(replay.mode().name(), &example.outputs, &outputs)?;
        }
    }
    let mut left = if variants > 1 { TRIAL_US } else { 0. };
    for (i, example) in (0..variants).cycle().zip(examples.iter().cycle()) {
        left -= samples[i].last().copied().unwrap_or(0.);
        if left <= 0. {
            break;
        }
        replay.choose(i);
        samples[i].push(timed(replay, example, device)?.1);
    }
    let latencies: Vec<Latency> = samples.into_iter().map(Latency::of).collect();
    let best = (0..variants).min_by(|&a, &b| latencies[a].median_us.total_cmp(&latencies[b].median_us)).unwrap_or(0);
    replay.choose(best);
    Ok(latencies[best].min_us)
}

/// Replays the examples and compares with eager.
fn compare(replay: &dyn Replay, examples: &[Example], device: &Device) -> Result<()> {
    examples.iter().try_for_each(|example| {
        let (outputs, _) = timed(replay, example, device)?;
        verify::same_bits("replay under stress", &example.outputs, &outputs)
    })
}

/// Outputs of a call and the microseconds that it took.
fn timed(replay: &dyn Replay, example: &Example, device: &Device) -> Result<(Vec<Tensor>, f64)> {
    let mut outputs = Vec::new();
    let us = timing::once(device, || {
        outputs = replay.call(&example.inputs)?;
        Ok(())
    })?;
    Ok((outputs, us))
}

fn describe(plan: &Planned) -> Report {
    let Planned { trace, prepared, schedule, .. } = plan;
    let Prepared { ops, graph, layouts: [tensors, workspaces], .. } = &**prepared;
    let placed = || ops.trace.buffers.iter().enumerate().filter(|(id, _)| tensors.offset(*id).is_some());
    Report {
        ops: trace.ops.len(),
        folded: trace.ops.len() - ops.kept.len(),
        edges: graph.hazards(),
        edges_reduced: graph.edges(),
        width: graph.width(),
        depth: graph.depth(),
        streams: schedule.streams(),
        waits: schedule.wait_count(),
        buffers: placed().count(),
        buffer_bytes: placed().map(|(_, b)| b.bytes).sum(),
        arena_bytes: tensors.bytes,
        workspace_bytes: workspaces.bytes,
        constant_bytes: ops.constant_bytes(),
        ..blank(String::new())
    }
}

fn blank(policy: String) -> Report {
    Report {
        device: String::new(),
        mode: Mode::Eager,
        reason: None,
        policy,
        ops: 0,
        folded: 0,
        edges: 0,
        edges_reduced: 0,
        width: 0,
        depth: 0,
        streams: 0,
        waits: 0,
        buffers: 0,
        buffer_bytes: 0,
        arena_bytes: 0,
        workspace_bytes: 0,
        constant_bytes: 0,
        verified: false,
        build_ms: BTreeMap::new(),
        eager_us: 0.,
        replay_us: 0.,
    }
}
