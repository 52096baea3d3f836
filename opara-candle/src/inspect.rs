//! Inspection of an executor: reports, traces, schedules and times.

use std::sync::Arc;

use candle::Tensor;

use crate::backend::Planned;
use crate::executor::BuiltOn;
use crate::pipeline::Plan;
use crate::plans::Entry;
use crate::report::Report;
use crate::shapes::key;
use crate::trace::Trace;
use crate::{Error, OparaExecutor, Result};
use opara_plan::schedule::Schedule;
use opara_plan::timeline::Timeline;

/// # Inspection
/// All of these but [`report`](Self::report) take inputs, and describe the plan of their shapes and dtypes. Like a call, they build a
/// plan that is missing; if another thread is building one, they fail with [`Error::Building`].
impl OparaExecutor {
    /// Describes the plan of the example's shapes, and counts events of the executor.
    ///
    /// If that plan was dropped ([`invalidate`](Self::invalidate), [`max_shapes`](crate::Builder::max_shapes)), this describes the last
    /// one, until it is rebuilt.
    pub fn report(&self) -> Report {
        match self.plans.example_report() {
            Some(report) => self.with_counts(report),
            None => unreachable!("an executor is built with its first plan"),
        }
    }

    /// Describes the plan for inputs like these, and counts events of the executor.
    ///
    /// # Errors
    /// Errors of [`call`](Self::call).
    pub fn report_for(&self, inputs: &[Tensor]) -> Result<Report> {
        Ok(self.with_counts(self.entry(inputs, &|| Ok(inputs.to_vec()))?.plan.report.clone()))
    }

    /// The trace that is replayed for inputs like these: the recorded launches, with each group of [fused](crate::Builder::fuse) ones as
    /// one op. [`measure`](Self::measure) measures its ops.
    ///
    /// # Errors
    /// [`Error::NotRecorded`] in eager mode, and errors of [`call`](Self::call).
    pub fn trace(&self, inputs: &[Tensor]) -> Result<Trace> {
        self.trace_with(inputs, &|| Ok(inputs.to_vec()))
    }

    /// The same for arguments like these, for which a plan is built on the `example`.
    pub(crate) fn trace_with(&self, arguments: &[Tensor], example: BuiltOn) -> Result<Trace> {
        let entry = self.entry(arguments, example)?;
        part(&entry, |plan| plan.trace.as_deref().cloned())
    }

    /// The recorded trace for inputs like these, before fusion.
    ///
    /// # Errors
    /// As for [`trace`](Self::trace).
    pub fn recorded_trace(&self, inputs: &[Tensor]) -> Result<Trace> {
        self.built(inputs, |plan| plan.recorded.as_deref().cloned())
    }

    /// The ops that every call with inputs like these runs, and their schedule. The spans of a timeline refer to these ops.
    ///
    /// # Errors
    /// As for [`trace`](Self::trace).
    pub fn schedule(&self, inputs: &[Tensor]) -> Result<(Trace, Schedule)> {
        let planned = self.built(inputs, |plan| plan.planned.clone())?;
        Ok((planned.prepared.ops.trace.clone(), planned.schedule.clone()))
    }

    /// Draws the schedule for inputs like these as SVG: its simulated timeline, one row per stream. Needs the feature `svg`.
    ///
    /// # Errors
    /// As for [`trace`](Self::trace).
    #[cfg(feature = "svg")]
    pub fn schedule_svg(&self, inputs: &[Tensor]) -> Result<String> {
        let planned = self.built(inputs, |plan| plan.planned.clone())?;
        let Planned { prepared, schedule, .. } = &*planned;
        let trace = &prepared.ops.trace;
        let device = opara_plan::simulate::DeviceModel::of(&trace.device);
        let timeline = opara_plan::simulate::simulate(&prepared.problem(), schedule, &device);
        let (ops, streams, waits) = (trace.ops.len(), schedule.streams(), schedule.wait_count());
        let title = format!("{ops} ops on {streams} streams, {waits} waits, simulated on {}", trace.device.name);
        Ok(timeline.to_svg(trace, &title))
    }

    /// Measures the trace for inputs like these: the time of each op alone on the device; and for each scheduler, and for the DAG without
    /// transitive reduction, the time of a replay and the share of the device in use.
    ///
    /// An op's time is its median over replays of the sequential schedule, where its counters, workspaces and operands are valid.
    /// Ops that are folded into constants do not run in replays, and have no time. Replays of the schedulers are interleaved. CUPTI
    /// measures the ops: it must be installed, and no profiler may be attached. It stays in the process, whose later replays take about
    /// 0.3 us longer for each op.
    ///
    /// # Errors
    /// [`Error::NotMeasurable`] in eager mode and on the CPU, [`Error::Driver`] if CUPTI cannot be used, and errors of
    /// [`call`](Self::call).
    pub fn measure(&self, inputs: &[Tensor]) -> Result<Trace> {
        let (entry, planned) = self.measurable(inputs)?;
        planned.measure(entry.plan.replay.as_deref().ok_or(Error::NotMeasurable)?, inputs)
    }

    /// Measures when each op of the schedule runs, in the replay of median length among several.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn timeline(&self, inputs: &[Tensor]) -> Result<Timeline> {
        let (_, planned) = self.measurable(inputs)?;
        planned.timeline(inputs)
    }

    /// The plan for inputs like these. Looking it up does not count as a call: it affects neither eviction nor rebuilding.
    fn entry(&self, inputs: &[Tensor], example: BuiltOn) -> Result<Arc<Entry>> {
        self.check(inputs)?;
        match self.plans.peek(&key(inputs)) {
            Some(entry) => Ok(entry),
            None => self.plan(&self.unborrowed_key(inputs)?, example)?.ok_or(Error::Building),
        }
    }

    /// A part of the plan for inputs like these, if building got so far.
    fn built<T>(&self, inputs: &[Tensor], of: impl FnOnce(&Plan) -> Option<T>) -> Result<T> {
        part(&*self.entry(inputs, &|| Ok(inputs.to_vec()))?, of)
    }

    fn measurable(&self, inputs: &[Tensor]) -> Result<(Arc<Entry>, Arc<Planned>)> {
        self.check(inputs)?;
        let entry = self.plan(&self.unborrowed_key(inputs)?, &|| Ok(inputs.to_vec()))?.ok_or(Error::Building)?;
        let planned = entry.plan.planned.clone().ok_or(Error::NotMeasurable)?;
        Ok((entry, planned))
    }

    fn with_counts(&self, report: Report) -> Report {
        let (rechecks, mismatches) = self.rechecks.counts();
        Report { rebuilds: self.plans.rebuilds(), rechecks, mismatches, ..report }
    }
}

/// A part of a plan, if building got so far.
fn part<T>(entry: &Entry, of: impl FnOnce(&Plan) -> Option<T>) -> Result<T> {
    let not_recorded = || Error::NotRecorded { reason: entry.plan.report.reason.clone().unwrap_or_default() };
    of(&entry.plan).ok_or_else(not_recorded)
}
