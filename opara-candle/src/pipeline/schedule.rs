//! The stage `schedule`: streams and order of the ops.

use std::sync::Arc;

use candle::Device;

use super::build::Build;
use super::fuse::Fused;
use crate::panics::caught_as;
use crate::prepared::Prepared;
use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::trace::Trace;
use crate::tune::{Cache, Findings, Tuning};
use crate::{cuda, Error, Result};

/// A prepared trace with a schedule.
pub(super) struct Scheduled {
    pub prepared: Arc<Prepared>,
    pub schedule: Schedule,
    /// Name of the policy.
    pub policy: String,
    /// What an earlier search found, if the schedule is from the cache of tuned plans.
    pub findings: Option<Findings>,
    /// The cache entry of a search's result.
    pub cache: Option<Cache>,
}

/// Schedules the ops. Where schedules are searched for on the device, it is the one that was found before, or else the
/// sequential one, from which the search begins.
pub(super) fn schedule(prepared: Prepared, fused: &Fused, build: &mut Build) -> Result<Scheduled> {
    let options = build.options;
    let problem = prepared.problem();
    let cache = options.tuning.as_ref().and_then(|tuning| cache(tuning, &fused.trace, &build.device));
    let (schedule, findings) = match cache.as_ref().and_then(|cache| cache.load(&problem)) {
        Some((schedule, findings)) => (schedule, Some(findings)),
        // Of a tuned plan the base, which others share memory with.
        None if options.tuning.is_some() => (Policy::Sequential.schedule(&problem)?, None),
        None => (build.times.time("schedule", || scheduled(&*options.scheduler, &problem))?, None),
    };
    if options.check {
        build.times.time("check", || prepared.check(&schedule))?;
    }
    let policy = options.scheduler.name();
    Ok(Scheduled { prepared: Arc::new(prepared), schedule, policy, findings, cache })
}

/// What the scheduler makes of the problem; it may be the user's own, and panic.
fn scheduled(scheduler: &dyn Scheduler, problem: &Problem) -> Result<Schedule> {
    let panicked = |message| Error::SchedulerPanicked { scheduler: scheduler.name(), message };
    caught_as(panicked, || Ok(scheduler.schedule(problem)?))
}

/// The cache entry of this trace's tuned plan, if plans are cached.
fn cache(tuning: &Tuning, trace: &Trace, device: &Device) -> Option<Cache> {
    let driver = if device.is_cuda() { cuda::driver_version(device) } else { "none".into() };
    let cache = tuning.cache.as_deref().map(|folder| Cache::new(folder, trace, &driver))?;
    cache.inspect_err(|error| tracing::warn!(%error, "a tuned plan cannot be kept")).ok()
}
