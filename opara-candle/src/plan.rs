//! The pipeline for one set of input shapes: record, analyse, schedule, place, replay, verify.

use std::cell::Cell;
use std::sync::Arc;

use candle::{Device, Tensor};
use parking_lot::Mutex;

use crate::backend::{Example, Function, Fusing, Planned, Program, Recording, Replay};
use crate::error::{caught_as, difference, STRESSED};
use crate::examples::{same_in_all, Examples};
use crate::measure::Replays;
use crate::options::{OnStateful, OnUncapturable, Options};
use crate::prepared::Prepared;
use crate::report::Report;
use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::timing::{self, Latency, Stages};
use crate::trace::Trace;
use crate::tune::{self, Cache, Tuning};
use crate::{challengers, cpu, cuda, verify, Error, Result};

/// What answers calls of one set of input shapes.
pub(crate) struct Plan {
    /// `None` calls the module itself.
    pub replay: Option<Box<dyn Replay>>,
    pub report: Report,
    pub planned: Option<Arc<Planned>>,
}

impl Plan {
    /// Builds a plan for inputs like these.
    ///
    /// # Errors
    /// The module's own, and what made a capture impossible if the options ask for that.
    pub fn build(function: &Function, inputs: &[Tensor], options: &Options, arena: &Arc<cuda::Arena>) -> Result<Plan> {
        // It may be built inside a pass of another module.
        cuda::unwatched(|| Self::build_unwatched(function, inputs, options, arena))
    }

    fn build_unwatched(
        function: &Function,
        inputs: &[Tensor],
        options: &Options,
        arena: &Arc<cuda::Arena>,
    ) -> Result<Plan> {
        let device = inputs.first().map_or(Device::Cpu, |t| t.device().clone());
        if options.on_stateful == OnStateful::Eager {
            let reason = Some("it is declared to keep state from call to call".into());
            let report = Report { reason, device: name(&device), ..blank(options.scheduler.name()) };
            return Ok(Plan { replay: None, report, planned: None });
        }
        let mut stages = Stages::default();
        let examples = options.examples();
        let (replaced, has_answered) = (Cell::new(0), Cell::new(false));
        let mut build = |fusing| {
            let (function, calls) = watched(function);
            let recording = stages.time("trace", || record(&function, inputs, &examples, &device, arena, fusing));
            stages.move_ms("trace", "forward", calls.lock().spent_ms);
            has_answered.set(has_answered.get() || calls.lock().has_answered);
            recording.and_then(|recording| {
                replaced.set(recording.replaced);
                let (replay, report, planned) = schedule(recording, options, &device, &mut stages)?;
                Ok((Some(replay), report, Some(planned)))
            })
        };
        let is_of_fusing = |error: &Error| matches!(error, Error::Mismatch { .. }) && replaced.get() > 0;
        let built = match build(options.fusing()) {
            Err(error) if is_of_fusing(&error) => {
                let difference = difference(&error);
                tracing::warn!(%difference, "building without fused launches");
                build(None).map(|(replay, mut report, planned)| {
                    report.reason.get_or_insert_with(|| format!("{difference}; launches are not fused"));
                    (replay, report, planned)
                })
            }
            built => built,
        };
        let (replay, mut report, planned) = match built {
            // The executor builds once more.
            Err(error @ Error::Freed) => return Err(error),
            Err(error) if runs_eagerly(&error, has_answered.get(), options) => {
                tracing::warn!(reason = %error, "calls of these shapes run eagerly");
                (None, Report { reason: Some(error.to_string()), ..blank(options.scheduler.name()) }, None)
            }
            built => built?,
        };
        report.device = name(&device);
        report.build_ms = stages.0;
        Ok(Plan { replay, report, planned })
    }

    /// A plan that calls the module, since nothing else can be built.
    pub fn eager(reason: &Error, inputs: &[Tensor], options: &Options) -> Plan {
        let device = inputs.first().map_or(Device::Cpu, |t| t.device().clone());
        let device = if device.is_cuda() { cuda::device_name(&device) } else { "cpu".into() };
        tracing::warn!(%reason, "calls of these shapes run eagerly");
        let report = Report { device, reason: Some(reason.to_string()), ..blank(options.scheduler.name()) };
        Plan { replay: None, report, planned: None }
    }
}

/// What a report calls the device.
fn name(device: &Device) -> String {
    if device.is_cuda() {
        cuda::device_name(device)
    } else {
        "cpu".into()
    }
}

/// Whether the module runs eagerly where this error keeps it from being replayed. Without memory for a replay it does if
/// the device had enough for a forward pass.
fn runs_eagerly(error: &Error, has_answered: bool, options: &Options) -> bool {
    let is_sound = error.is_uncapturable() || has_answered && matches!(error, Error::OutOfMemory { .. });
    is_sound && options.on_uncapturable == OnUncapturable::Eager
}

/// Calls of a function.
#[derive(Default)]
struct Calls {
    /// Milliseconds of all of them.
    spent_ms: f64,
    /// Whether one of them went well.
    has_answered: bool,
}

/// The function, and its calls from now on.
fn watched(function: &Function) -> (Function, Arc<Mutex<Calls>>) {
    let (function, calls) = (function.clone(), Arc::new(Mutex::new(Calls::default())));
    let watch = calls.clone();
    let watched = move |inputs: &[Tensor]| {
        let (outputs, us) = timing::wall_us(|| function(inputs));
        let mut calls = watch.lock();
        calls.spent_ms += us / 1e3;
        calls.has_answered |= outputs.is_ok();
        outputs
    };
    (Arc::new(watched), calls)
}

fn record(
    function: &Function,
    inputs: &[Tensor],
    examples: &Examples,
    device: &Device,
    arena: &Arc<cuda::Arena>,
    fusing: Option<Fusing>,
) -> Result<Recording> {
    let recording = match device {
        Device::Cpu => cpu::record(function, inputs, examples)?,
        Device::Cuda(_) => cuda::record(function, inputs, examples, arena, fusing)?,
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
    let Recording { trace, fused, notes, examples, program, .. } = recording;
    let trace = Arc::new(trace);
    let prepared = Arc::new(Prepared::timed(&trace, options.settings, stages));
    let problem = prepared.problem();
    let cache = options.tuning.as_ref().and_then(|tuning| cache(tuning, &trace, device));
    let mut tuned = cache.as_ref().and_then(|cache| cache.load(&problem));
    let schedule = match &tuned {
        Some((schedule, _)) => schedule.clone(),
        // Of a tuned plan the base, which others share memory with.
        None if options.tuning.is_some() => Policy::Sequential.schedule(&problem)?,
        None => stages.time("schedule", || scheduled(&*options.scheduler, &problem))?,
    };
    if options.check {
        stages.time("check", || prepared.check(&schedule))?;
    }
    let mut plan = Arc::new(Planned { program, trace, prepared: prepared.clone(), schedule });
    let mut policy = options.scheduler.name();
    let mut replay = stages.time("capture", || plan.program.clone().replay(plan.clone()))?;
    let mut reason = None;
    let inputs = examples.iter().map(|example| &example.inputs[..]).collect();
    let mut track = Replays { base: &*replay, plan: &plan.clone(), inputs, device, next: 0 };
    let sequential = Policy::Sequential.name();
    if let (Some(tuning), None) = (&options.tuning, &tuned) {
        match stages.time("tune", || tune::search(&problem, &mut track, tuning)) {
            Ok(winner) => {
                cache.iter().for_each(|cache| cache.store(&winner.schedule, &winner.findings));
                (plan, replay) = (plan.with(winner.schedule.clone()), winner.runner);
                tuned = Some((winner.schedule, winner.findings));
            }
            // There is memory for the base.
            Err(error @ Error::OutOfMemory { .. }) => {
                tracing::warn!(%error, "schedules are left untried: the sequential one runs");
                reason = Some(format!("{error}; fell back to the sequential schedule"));
                policy = sequential.clone();
            }
            Err(error) => return Err(error),
        }
    } else if options.race && device.is_cuda() && policy != sequential {
        if let Some(winner) = stages.time("race", || challengers::faster(&mut track, &problem, &policy))? {
            (plan, replay, policy) = (plan.with(winner.schedule), winner.runner, winner.name);
        }
    }
    let replay_us = loop {
        if cfg!(debug_assertions) {
            stages.time("check", || prepared.check(&plan.schedule))?;
        }
        match stages.time("verify", || try_out(&mut *replay, &*plan.program, &examples, options.verify, device)) {
            Ok(us) => break us,
            Err(error @ Error::Mismatch { .. }) if policy != sequential => {
                let difference = difference(&error);
                tracing::warn!(%difference, %policy, "falling back to the sequential schedule");
                reason = Some(format!("{difference}; fell back to the sequential schedule"));
                policy = sequential.clone();
                tuned = None;
                plan = plan.with(Policy::Sequential.schedule(&problem)?);
                replay = stages.time("capture", || plan.program.clone().replay(plan.clone()))?;
            }
            Err(error) => return Err(error),
        }
    };
    for seed in 0..options.stress {
        let stressed = plan.program.clone().stressed(plan.clone(), seed)?;
        stages.time("stress", || compare(&*stressed, &*plan.program, &examples, device))?;
    }
    plan.program.end_of_building()?;
    let mut report = describe(&plan);
    (report.ops, report.fused) = (report.ops + fused, fused);
    report.mode = replay.mode();
    report.policy = policy;
    report.reason = reason;
    report.notes = notes;
    report.tuning = tuned.map(|(_, findings)| findings);
    report.verified = options.verify;
    if options.verify {
        report.verified_inputs = examples.len();
        report.same_in_all = same_in_all(&examples)?;
    }
    report.replay_us = replay_us;
    report.eager_us = examples.iter().map(|e| e.eager_us).fold(f64::INFINITY, f64::min);
    Ok((replay, report, plan))
}

/// What the scheduler makes of the problem; it may be the user's own, and panic.
fn scheduled(scheduler: &dyn Scheduler, problem: &Problem) -> Result<Schedule> {
    let panicked = |message| Error::SchedulerPanicked { scheduler: scheduler.name(), message };
    caught_as(panicked, || Ok(scheduler.schedule(problem)?))
}

/// The place of this trace's tuned plan, if plans are kept.
fn cache(tuning: &Tuning, trace: &Trace, device: &Device) -> Option<Cache> {
    let driver = if device.is_cuda() { cuda::driver_version(device) } else { "none".into() };
    let cache = tuning.cache.as_deref().map(|folder| Cache::new(folder, trace, &driver))?;
    cache.inspect_err(|error| tracing::warn!(%error, "a tuned plan cannot be kept")).ok()
}

/// Microseconds that comparing variants may take beyond the verification. It buys short forwards several samples each;
/// long ones need none.
const TRIAL_US: f64 = 100_000.;

/// Replays the examples, compares where asked to, and keeps the variant with the lower median. Returns the time of its
/// fastest replay in microseconds.
///
/// Variants take turns over the examples: building costs few forwards.
fn try_out(
    replay: &mut dyn Replay,
    program: &dyn Program,
    examples: &[Example],
    compare: bool,
    device: &Device,
) -> Result<f64> {
    let variants = replay.variants();
    let mut samples = vec![Vec::new(); variants];
    // Every example, and every variant.
    for (i, example) in (0..examples.len().max(variants)).zip(examples.iter().cycle()) {
        replay.choose(i % variants);
        let (outputs, us) = timed(replay, program, example, device)?;
        samples[i % variants].push(us);
        if compare {
            verify::same_bits("replay", &example.outputs, &outputs)?;
        }
    }
    let mut left = if variants > 1 { TRIAL_US } else { 0. };
    for (i, example) in (0..variants).cycle().zip(examples.iter().cycle()) {
        left -= samples[i].last().copied().unwrap_or(0.);
        if left <= 0. {
            break;
        }
        replay.choose(i);
        samples[i].push(timed(replay, program, example, device)?.1);
    }
    let latencies: Vec<Latency> = samples.into_iter().map(Latency::of).collect();
    let best = (0..variants).min_by(|&a, &b| latencies[a].median_us.total_cmp(&latencies[b].median_us)).unwrap_or(0);
    replay.choose(best);
    Ok(latencies[best].min_us)
}

/// Replays the examples and compares with eager.
fn compare(replay: &dyn Replay, program: &dyn Program, examples: &[Example], device: &Device) -> Result<()> {
    examples.iter().try_for_each(|example| {
        let (outputs, _) = timed(replay, program, example, device)?;
        verify::same_bits(STRESSED, &example.outputs, &outputs)
    })
}

/// Outputs of a call in the module's state from before building, and the microseconds that it took.
fn timed(replay: &dyn Replay, program: &dyn Program, example: &Example, device: &Device) -> Result<(Vec<Tensor>, f64)> {
    program.restore_state()?;
    timing::timed(device, || replay.call(&example.inputs))
}

fn describe(plan: &Planned) -> Report {
    let Planned { trace, prepared, schedule, .. } = plan;
    let Prepared { ops, graph, layouts: [tensors, workspaces], .. } = &**prepared;
    let placed = || ops.trace.buffers.iter().enumerate().filter(|(id, _)| tensors.offset(*id).is_some());
    Report {
        ops: trace.ops.len(),
        folded: trace.ops.len() - ops.per_call.len(),
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
    Report { policy, ..Report::default() }
}
