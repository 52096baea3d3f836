//! Measures a plan on its device: schedules against each other, and single ops.

use std::sync::Arc;

use candle::{Device, Tensor};

use crate::arguments::{Rerun, StateArguments};
use crate::backend::{OpTimes, Planned, Replay};
use crate::timing;
use crate::trace::{Measured, Trace};
use crate::{Error, Result};
use opara_plan::graph::hazards;
use opara_plan::schedule::{BuiltIn, Schedule, Scheduler};
use opara_plan::timeline::{Span, Timeline};
use opara_plan::tune::{benchmark, Bench, Contestant};

/// Name of the DAG's schedule with all edges, including edges that other edges imply.
const EVERY_EDGE: &str = "dag, every edge";

/// The number of replays per schedule, and of replays in which single ops are measured.
const REPLAYS: usize = 51;
const ROUNDS: usize = 21;

impl Planned {
    /// The trace with the median time of each op alone, and with every scheduler's replay.
    pub fn measure(&self, base: &dyn Replay, inputs: &[Tensor]) -> Result<Trace> {
        let device = inputs.first().map_or(Device::Cpu, |t| t.device().clone());
        let problem = self.prepared.problem();
        let mut trace = (*self.trace).clone();
        // Before the first use of CUPTI, which may slow later replays down.
        let mut bench = Replays::new(base, self, vec![inputs], &StateArguments::default(), &device)?;
        let mut field = Vec::new();
        for scheduler in BuiltIn::FIXED {
            field.push(Contestant::new(scheduler.name(), scheduler.schedule(&problem)?, &mut bench)?);
        }
        // Shows the gain of leaving implied edges out.
        let mut every = BuiltIn::Dag.schedule(&problem)?;
        every.predecessors.iter_mut().zip(hazards(&self.prepared.ops.trace)).for_each(|(edges, hazards)| {
            edges.extend(hazards);
            edges.sort_unstable();
            edges.dedup();
        });
        field.push(Contestant::new(EVERY_EDGE.into(), every, &mut bench)?);
        benchmark(&mut bench, &mut field, REPLAYS)?;
        for contestant in field {
            let nanos = (contestant.median() * 1e3) as u64;
            let timeline = self.with(contestant.schedule).timeline(inputs)?;
            let busy = Some((timeline.utilization() * 1e3).round() as u32);
            trace.measured.push(Measured { schedule: contestant.name, nanos, busy });
        }
        let sequential = self.with(BuiltIn::Sequential.schedule(&problem)?);
        let op_times = self.program.clone().op_times(sequential, inputs, ROUNDS)?;
        for (at, &op) in self.prepared.ops.per_call.iter().enumerate() {
            let mut nanos: Vec<u64> = op_times.iter().map(|times| times[at].1 - times[at].0).collect();
            nanos.sort_unstable();
            trace.ops[op].nanos = nanos.get(nanos.len() / 2).copied();
        }
        Ok(trace)
    }

    /// The timeline of median length, of several replays.
    pub fn timeline(self: &Arc<Self>, inputs: &[Tensor]) -> Result<Timeline> {
        let shares: Vec<f64> = self.prepared.profile.iter().map(|op| op.share).collect();
        let rounds = self.program.clone().op_times(self.clone(), inputs, ROUNDS)?;
        let us = |nanos: u64| nanos as f64 / 1e3;
        let timeline = |times: OpTimes| {
            let span = |(op, (start, end)): (usize, (u64, u64))| Span {
                op,
                stream: self.schedule.stream[op],
                start_us: us(start),
                end_us: us(end),
            };
            Timeline::new(times.into_iter().enumerate().map(span).collect(), &shares)
        };
        let mut timelines: Vec<Timeline> = rounds.into_iter().map(timeline).collect();
        timelines.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
        let middle = timelines.len() / 2;
        Ok(timelines.swap_remove(middle))
    }
}

/// Benchmarks schedules of one trace on its device.
pub(crate) struct Replays<'a> {
    pub base: &'a dyn Replay,
    pub plan: &'a Planned,
    /// Sets of arguments, one for each run in turn.
    sets: Vec<Rerun<'a>>,
    device: &'a Device,
    /// The set of the next run.
    next: usize,
}

impl Bench for Replays<'_> {
    type Runner = Box<dyn Replay>;
    type Error = Error;

    fn runner(&mut self, schedule: &Schedule) -> Result<Box<dyn Replay>> {
        self.base.rescheduled(self.plan.with(schedule.clone()))
    }

    fn run(&mut self, replay: &Box<dyn Replay>) -> Result<f64> {
        self.next += 1;
        self.lap(&**replay, self.next - 1)
    }
}

impl<'a> Replays<'a> {
    /// For these sets of arguments, with a state of their own for each.
    ///
    /// # Errors
    /// No memory for such a state.
    pub fn new(
        base: &'a dyn Replay,
        plan: &'a Planned,
        sets: Vec<&'a [Tensor]>,
        state: &StateArguments,
        device: &'a Device,
    ) -> Result<Self> {
        let sets = sets.into_iter().map(|set| Rerun::new(state, set)).collect::<candle::Result<_>>()?;
        Ok(Self { base, plan, sets, device, next: 0 })
    }

    /// Microseconds of one replay, with the set of this number, counted round.
    pub fn lap(&self, replay: &dyn Replay, set: usize) -> Result<f64> {
        let set = &self.sets[set % self.sets.len()];
        set.rewind_counters()?;
        Ok(timing::timed(self.device, || replay.call_zero_copy(set.arguments(), &mut |_| ()))?.1)
    }
}
