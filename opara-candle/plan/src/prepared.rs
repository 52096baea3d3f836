//! The input of scheduling: the ops that every call runs, their dependencies, their memory layout and their costs.

use crate::graph::OpGraph;
use crate::memory::{self, Layout};
use crate::optimize::Optimized;
use crate::profile::{profile, OpProfile};
use crate::schedule::{Problem, Schedule};
use crate::stopwatch::StageTimes;
use crate::trace::{Role, Trace};
use crate::{check, Result};

/// Settings of constant folding and memory layout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Are ops that depend on no input folded, to run once?
    pub fold_constants: bool,
    /// The memory that buffers may take, as a multiple of the [least](Least); `None` for the default of that.
    pub memory_factor: Option<f64>,
    /// The memory that the limit is a multiple of.
    pub least: Least,
    /// Bytes that buffers may take at most, whatever the factor says. The tightest layout may need more.
    pub most: Option<u64>,
    /// Bytes that constants may take in addition.
    pub constant_room: u64,
}

/// The memory that a limit is a multiple of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Least {
    /// The peak of the recorded pass; 1.15 times that by default. Constants count.
    Recorded,
    /// The tightest layout of the ops one after the other; 1.025 times that by default. Constants take a sixteenth of it in addition, at most.
    Packed,
}

impl Settings {
    /// The memory of buffers and constants, of which constants may take what buffers leave, or a sixteenth.
    fn limit_of_constants(self, trace: &Trace) -> Option<u64> {
        match self.least {
            Least::Recorded => self.limit(trace),
            Least::Packed => Some(memory::least(trace)),
        }
    }

    /// The memory that buffers may take, of a recorded pass together with constants.
    fn limit(self, trace: &Trace) -> Option<u64> {
        let limit = match self.least {
            Least::Recorded => {
                let limit = trace.memory_limit(self.memory_factor.unwrap_or(1.15))?;
                limit.saturating_add(self.constant_room)
            }
            Least::Packed => (memory::least(trace) as f64 * self.memory_factor.unwrap_or(1.025)) as u64,
        };
        Some(limit.min(self.most.unwrap_or(u64::MAX)))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { fold_constants: true, memory_factor: None, least: Least::Recorded, most: None, constant_room: 0 }
    }
}

/// A trace after constant folding, with its dependencies and costs.
#[derive(Debug, Clone)]
pub struct Analysed {
    /// The ops after constant folding.
    pub ops: Optimized,
    /// Dependencies between the ops, derived from their accesses.
    pub graph: OpGraph,
    /// The cost of each op.
    pub profile: Vec<OpProfile>,
}

/// Folds the ops that depend on no input, if the settings say so. Counts the time as stage `optimize`.
pub fn fold(trace: &Trace, settings: Settings, stages: &mut StageTimes) -> Optimized {
    stages.time("optimize", || match settings.fold_constants {
        true => Optimized::fold_within(trace, settings.limit_of_constants(trace).unwrap_or(u64::MAX)),
        false => Optimized::unchanged(trace),
    })
}

/// Finds the dependencies and the cost of each op. Counts the times as stages `graph` and `profile`.
pub fn analyse(ops: Optimized, stages: &mut StageTimes) -> Analysed {
    let graph = stages.time("graph", || OpGraph::new(&ops.trace));
    let profile = stages.time("profile", || profile(&ops.trace));
    Analysed { ops, graph, profile }
}

/// Places the buffers in two arenas, and adds an edge to the graph where an op has to wait for memory. Counts the times
/// as stages `memory` and `graph`.
pub fn place(analysed: Analysed, settings: Settings, stages: &mut StageTimes) -> Prepared {
    let Analysed { ops, mut graph, profile } = analysed;
    let limit = settings.limit(&ops.trace);
    let constants = if settings.least == Least::Packed { 0 } else { ops.constant_bytes() };
    let limit = limit.map(|bytes| bytes.saturating_sub(constants));
    let arenas = [(Role::Intermediate, limit), (Role::Workspace, Some(memory::WORKSPACE_LIMIT))];
    let layouts = arenas.map(|(role, limit)| {
        let layout = stages.time("memory", || memory::plan(&ops.trace, &graph, role, limit));
        graph = stages.time("graph", || graph.with_order(layout.waits()));
        layout
    });
    Prepared { ops, graph, layouts, profile }
}

/// The input of scheduling, computed from a trace.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The trace after constant folding.
    pub ops: Optimized,
    /// The dependencies between `ops`, from their accesses and from reuse of memory by buffers.
    pub graph: OpGraph,
    /// The layouts of tensors and of library workspaces.
    pub layouts: [Layout; 2],
    /// The cost of each op.
    pub profile: Vec<OpProfile>,
}

impl Prepared {
    /// Prepares a trace, which has to be valid ([`Trace::validate`]): [`fold`], [`analyse`] and [`place`].
    pub fn new(trace: &Trace, settings: Settings) -> Self {
        let stages = &mut StageTimes::default();
        place(analyse(fold(trace, settings, stages), stages), settings, stages)
    }

    /// The input of a scheduler.
    pub fn problem(&self) -> Problem<'_> {
        Problem { trace: &self.ops.trace, graph: &self.graph, profile: &self.profile }
    }

    /// Proves a schedule and the layouts against the trace; [`check`] states the complexity.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`](crate::Error::InvalidSchedule) and
    /// [`Error::InvalidLayout`](crate::Error::InvalidLayout), naming ops or buffers.
    pub fn check(&self, schedule: &Schedule) -> Result<()> {
        let trace = &self.ops.trace;
        check::schedule(trace, schedule)?;
        self.layouts.iter().try_for_each(|layout| check::layout(trace, schedule, layout))
    }
}
