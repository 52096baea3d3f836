//! The stage `instantiate`: makes the replay of the schedule, or of a faster one that was found on the device.

use std::sync::Arc;

use candle::Tensor;

use super::build::Build;
use super::fuse::Fused;
use super::schedule::Scheduled;
use crate::backend::{Planned, Replay};
use crate::measure::Replays;
use crate::{challengers, Error, Result};
use opara_plan::schedule::{BuiltIn, Schedule, Scheduler};
use opara_plan::tune::{self, Cache, Findings, Search};

/// A schedule, ready to be replayed.
pub(super) struct Instance {
    pub plan: Arc<Planned>,
    pub replay: Box<dyn Replay>,
    /// Name of the scheduler that made the schedule.
    pub scheduler: String,
    /// Why the schedule differs from the requested one.
    pub reason: Option<String>,
    /// The result of the search for a tuned schedule.
    pub findings: Option<Findings>,
}

impl Instance {
    /// Replaces the schedule and its replay, for the same trace.
    pub fn rescheduled(self, schedule: Schedule, replay: Box<dyn Replay>) -> Self {
        Self { plan: self.plan.with(schedule), replay, ..self }
    }
}

/// Builds the replay of the schedule. A tuned schedule that is not cached is searched for on the device; another schedule on a GPU is
/// benchmarked against its challengers.
pub(super) fn instantiate(scheduled: Scheduled, fused: &Fused, build: &mut Build) -> Result<Instance> {
    let Scheduled { prepared, schedule, scheduler, findings, cache } = scheduled;
    let (program, trace) = (fused.program.clone(), fused.trace.clone());
    let plan = Arc::new(Planned { program, trace, prepared, schedule });
    let replay = build.times.time("capture", || plan.program.clone().replay(plan.clone()))?;
    let instance = Instance { plan, replay, scheduler, reason: None, findings };
    let inputs = fused.examples.iter().map(|example| &example.inputs[..]).collect();
    match &build.options.tuning {
        Some(tuning) if instance.findings.is_none() => tune(instance, inputs, tuning, cache, build),
        _ if build.options.benchmark_challengers
            && build.device.is_cuda()
            && instance.scheduler != BuiltIn::Sequential.name() =>
        {
            benchmark_challengers(instance, inputs, build)
        }
        _ => Ok(instance),
    }
}

/// Searches for a faster schedule.
fn tune(
    instance: Instance,
    inputs: Vec<&[Tensor]>,
    tuning: &Search,
    cache: Option<Cache>,
    build: &mut Build,
) -> Result<Instance> {
    let Instance { plan, replay, .. } = &instance;
    let mut track = Replays::new(&**replay, plan, inputs, &build.options.state, &build.device)?;
    match build.times.time("tune", || tune::search(&plan.prepared.problem(), &mut track, tuning)) {
        Ok(winner) => {
            cache.iter().for_each(|cache| cache.store(&winner.schedule, &winner.findings));
            let findings = Some(winner.findings);
            Ok(Instance { findings, ..instance.rescheduled(winner.schedule, winner.runner) })
        }
        // There is memory for the base.
        Err(error @ Error::OutOfMemory { .. }) => {
            tracing::warn!(%error, "schedules are left untried: the sequential one runs");
            let reason = Some(format!("{error}; fell back to the sequential schedule"));
            Ok(Instance { reason, scheduler: BuiltIn::Sequential.name(), ..instance })
        }
        Err(error) => Err(error),
    }
}

/// Benchmarks challenger schedules. The fastest replaces the schedule if it is faster.
fn benchmark_challengers(instance: Instance, inputs: Vec<&[Tensor]>, build: &mut Build) -> Result<Instance> {
    let Instance { plan, replay, scheduler, .. } = &instance;
    let mut track = Replays::new(&**replay, plan, inputs, &build.options.state, &build.device)?;
    let winner = build
        .times
        .time("challengers", || challengers::faster(&mut track, &plan.prepared.problem(), scheduler, build.rival_us))?;
    Ok(match winner {
        Some(winner) => Instance { scheduler: winner.name, ..instance.rescheduled(winner.schedule, winner.runner) },
        None => instance,
    })
}
