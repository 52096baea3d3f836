//! The stage `schedule`: streams and order of the ops.

use std::sync::Arc;

use candle::Device;

use super::build::Build;
use super::fuse::Fused;
use crate::panics::caught_as;
use crate::trace::Trace;
use crate::{cuda, Error, Result};
use opara_plan::prepared::Prepared;
use opara_plan::schedule::{BuiltIn, Problem, Schedule, Scheduler};
use opara_plan::tune::{Cache, Findings, Search};

/// A prepared trace with a schedule.
pub(super) struct Scheduled {
    pub prepared: Arc<Prepared>,
    pub schedule: Schedule,
    /// Name of the scheduler.
    pub scheduler: String,
    /// The result of an earlier search, if the schedule is from the cache of tuned plans.
    pub findings: Option<Findings>,
    /// The cache entry for a search's result.
    pub cache: Option<Cache>,
}

/// Schedules the ops. With tuning, the schedule is the cached one, or else the sequential one, from which the search
/// begins.
pub(super) fn schedule(prepared: Prepared, fused: &Fused, build: &mut Build) -> Result<Scheduled> {
    let options = build.options;
    let problem = prepared.problem();
    let cache = options.tuning.as_ref().and_then(|tuning| cache(tuning, &fused.trace, &build.device));
    let (schedule, findings) = match cache.as_ref().and_then(|cache| cache.load(&problem)) {
        Some((schedule, findings)) => (schedule, Some(findings)),
        // The base of the search. The replays that it tries share the base's memory.
        None if options.tuning.is_some() => (BuiltIn::Sequential.schedule(&problem)?, None),
        None => (build.times.time("schedule", || scheduled(&*options.scheduler, &problem))?, None),
    };
    if options.check {
        build.times.time("check", || prepared.check(&schedule))?;
    }
    let scheduler = options.scheduler.name();
    Ok(Scheduled { prepared: Arc::new(prepared), schedule, scheduler, findings, cache })
}

/// Runs the scheduler. A panic becomes an error, since the scheduler may be a user's own.
fn scheduled(scheduler: &dyn Scheduler, problem: &Problem) -> Result<Schedule> {
    let panicked = |message| Error::SchedulerPanicked { scheduler: scheduler.name(), message };
    caught_as(panicked, || Ok(scheduler.schedule(problem)?))
}

/// The cache entry of this trace's tuned plan, if plans are cached.
fn cache(tuning: &Search, trace: &Trace, device: &Device) -> Option<Cache> {
    let driver = if device.is_cuda() { cuda::driver_version(device) } else { "none".into() };
    let cache = tuning.cache.as_deref().map(|folder| Cache::new(folder, trace, &driver))?;
    cache.inspect_err(|error| tracing::warn!(%error, "a tuned plan cannot be kept")).ok()
}
