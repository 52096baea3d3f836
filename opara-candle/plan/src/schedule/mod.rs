//! Schedules. A scheduler assigns each op to a stream and chooses a launch order; both together determine the waits.

mod built_in;
pub(crate) mod critical_path;
pub(crate) mod dag;
mod opara;
mod reuse;
pub(crate) mod sequential;
mod stages;

pub use built_in::{BuiltIn, UnknownScheduler};
pub use opara::{launch_order, stream_allocation, Opara, Resource};
pub use stages::Stage;

use serde::{Deserialize, Serialize};

use crate::graph::{reduce::transitive_reduction, OpGraph};
use crate::profile::OpProfile;
use crate::trace::{OpId, Trace};
use crate::Error;
pub use crate::Result;

/// The input of a scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a> {
    /// The ops, with the device that they run on.
    pub trace: &'a Trace,
    /// The dependencies between the ops.
    pub graph: &'a OpGraph,
    /// The cost of each op.
    pub profile: &'a [OpProfile],
}

/// Schedules ops: one of the [`BuiltIn`]s, or a user's own scheduler.
///
/// ```
/// use opara_plan::schedule::{Problem, Result, Schedule, Scheduler};
///
/// /// Every op on a stream of its own, as recorded.
/// #[derive(Debug)]
/// struct Scattered;
///
/// impl Scheduler for Scattered {
///     fn name(&self) -> String {
///         "scattered".into()
///     }
///
///     fn schedule(&self, problem: &Problem) -> Result<Schedule> {
///         let ops = problem.graph.len();
///         Schedule::new(problem.graph, (0..ops).collect(), (0..ops).collect())
///     }
/// }
/// ```
pub trait Scheduler: std::fmt::Debug + Send + Sync {
    /// Its name in reports and tables.
    fn name(&self) -> String;

    /// Schedules every op once.
    ///
    /// # Errors
    /// The scheduler's own, and errors of [`Schedule::new`].
    fn schedule(&self, problem: &Problem) -> Result<Schedule>;
}

/// A stream for every op, a launch order, and the waits of each launch. Plain data.
///
/// Ops of one stream run one after the other in launch order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// The stream of each op, counted from 0.
    pub stream: Vec<usize>,
    /// All ops in launch order.
    pub order: Vec<OpId>,
    /// Ascending positions in the order. At each of them, all ops launched so far finish before the next one starts.
    pub barriers: Vec<usize>,
    /// Ops that are launched with the device's highest priority.
    #[serde(default)]
    pub urgent: Vec<OpId>,
    /// For each op the ops that it waits for directly, ascending in launch order: the op before it on its stream, and ops of
    /// other streams. An op that one of them, or a barrier, already waits for is left out.
    pub predecessors: Vec<Vec<OpId>>,
}

/// One launch of a schedule: an op, or an empty launch for a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The op; `None` for a barrier.
    pub op: Option<OpId>,
    /// The earlier steps that it waits for.
    pub after: Vec<usize>,
}

impl Schedule {
    /// A schedule from a stream assignment and a launch order, with as few waits as the dependencies need.
    ///
    /// # Arguments
    /// The stream of each op, and all ops in an order in which each comes after its dependencies. Streams are renumbered in the
    /// order of their first launch.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] if an op has no stream, is not launched exactly once, or is launched before one of its
    /// dependencies.
    pub fn new(graph: &OpGraph, stream: Vec<usize>, order: Vec<OpId>) -> Result<Self> {
        Self::with_barriers(graph, stream, order, Vec::new())
    }

    /// Like [`new`](Self::new), with barriers at these positions of the order.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new), and barriers that are not ascending positions inside the order.
    pub fn with_barriers(
        graph: &OpGraph,
        mut stream: Vec<usize>,
        order: Vec<OpId>,
        barriers: Vec<usize>,
    ) -> Result<Self> {
        let position = positions(graph, &stream, &order)?;
        if !barriers.is_sorted_by(|a, b| a < b) || barriers.iter().any(|&b| b == 0 || b >= order.len()) {
            return Err(Error::InvalidSchedule("barriers have to be ascending positions inside the order".into()));
        }
        let mut numbers = hashbrown::HashMap::new();
        for &op in &order {
            let next = numbers.len();
            stream[op] = *numbers.entry(stream[op]).or_insert(next);
        }
        let mut schedule = Self { stream, order, barriers, urgent: Vec::new(), predecessors: Vec::new() };
        schedule.predecessors = schedule.with_fewest_waits(graph, &position);
        Ok(schedule)
    }

    /// The same launch order on at most `streams` streams: stream `i` becomes stream `i % streams`. Ops that then share a stream
    /// run in launch order.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new), if the schedule belongs to another graph.
    pub fn cap_streams(self, graph: &OpGraph, streams: usize) -> Result<Self> {
        if self.streams() <= streams {
            return Ok(self);
        }
        let stream = self.stream.into_iter().map(|stream| stream % streams.max(1)).collect();
        Ok(Self { urgent: self.urgent, ..Self::with_barriers(graph, stream, self.order, self.barriers)? })
    }

    /// Every launch and barrier in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::with_capacity(self.order.len() + self.barriers.len());
        let mut step_of = vec![0; self.order.len()];
        let mut barriers = self.barriers.iter().peekable();
        // The barrier before the current stage, and for each step whether a later step still has to wait for it.
        let mut barrier = None;
        let mut open: Vec<bool> = Vec::new();
        let mut stage = 0;
        for (at, &op) in self.order.iter().enumerate() {
            if barriers.next_if_eq(&&at).is_some() {
                let after = (stage..steps.len()).filter(|&step| open[step]).collect();
                barrier = Some(steps.len());
                stage = steps.len();
                steps.push(Step { op: None, after });
                open.push(true);
            }
            let mut after: Vec<usize> = self.predecessors[op].iter().map(|&p| step_of[p]).collect();
            if after.is_empty() {
                after.extend(barrier);
            }
            after.iter().for_each(|&p| open[p] = false);
            step_of[op] = steps.len();
            steps.push(Step { op: Some(op), after });
            open.push(true);
        }
        steps
    }

    fn with_fewest_waits(&self, graph: &OpGraph, position: &[usize]) -> Vec<Vec<OpId>> {
        let order = &self.order;
        let before = self.stream_predecessors();
        if self.streams() <= 1 && self.barriers.is_empty() {
            // One stream orders every op behind its dependencies.
            return before.into_iter().map(|before| before.into_iter().collect()).collect();
        }
        let mut barriers = self.barriers.iter().peekable();
        let mut stage = 0;
        let mut needed: Vec<Vec<usize>> = Vec::with_capacity(order.len());
        let mut more = false;
        for (at, &op) in order.iter().enumerate() {
            if let Some(&barrier) = barriers.next_if_eq(&&at) {
                stage = barrier;
            }
            let mut own: Vec<usize> = graph.predecessors(op).map(|p| position[p]).filter(|&p| p >= stage).collect();
            let before = before[op].map(|before| position[before]).filter(|&p| p >= stage);
            if let Some(before) = before.filter(|before| !own.contains(before)) {
                own.push(before);
                more = true;
            }
            needed.push(own);
        }
        // The graph is reduced already. Streams that are paths of it add no edge, so there is nothing to reduce again.
        let reduced = if more { transitive_reduction(&needed) } else { needed };
        let mut predecessors = vec![Vec::new(); order.len()];
        for (at, mut reduced) in reduced.into_iter().enumerate() {
            reduced.sort_unstable();
            predecessors[order[at]] = reduced.into_iter().map(|p| order[p]).collect();
        }
        predecessors
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.stream.iter().max().map_or(0, |s| s + 1)
    }

    /// The ops of other streams that `op` waits for.
    pub fn waits(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        self.predecessors[op].iter().copied().filter(move |&p| self.stream[p] != self.stream[op])
    }

    /// The number of waits across streams, including waits of barriers.
    pub fn wait_count(&self) -> usize {
        let steps = self.steps();
        let crosses = |step: &Step, &before: &usize| match (step.op, steps[before].op) {
            (Some(op), Some(before)) => self.stream[op] != self.stream[before],
            _ => true,
        };
        steps.iter().map(|step| step.after.iter().filter(|before| crosses(step, before)).count()).sum()
    }

    /// For each op the op before it on its stream.
    pub fn stream_predecessors(&self) -> Vec<Option<OpId>> {
        let mut last: Vec<Option<OpId>> = vec![None; self.streams()];
        let mut before = vec![None; self.order.len()];
        for &op in &self.order {
            before[op] = last[self.stream[op]].replace(op);
        }
        before
    }
}

/// The position of each op in the order.
fn positions(graph: &OpGraph, stream: &[usize], order: &[OpId]) -> Result<Vec<usize>> {
    let invalid = |reason: String| Err(Error::InvalidSchedule(reason));
    let ops = graph.len();
    if stream.len() != ops || order.len() != ops {
        return invalid(format!("{} ops have a stream and {} are launched, of {ops}", stream.len(), order.len()));
    }
    let mut position = vec![usize::MAX; ops];
    for (at, &op) in order.iter().enumerate() {
        if op >= ops || position[op] != usize::MAX {
            return invalid(format!("op {op} is launched twice or does not exist"));
        }
        if let Some(p) = graph.predecessors(op).find(|&p| position[p] == usize::MAX) {
            return invalid(format!("op {op} is launched before op {p}, which it depends on"));
        }
        position[op] = at;
    }
    Ok(position)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A four-branch block: 0 feeds 1, 2, 3 and 4; 2-5, 3-6, 4-7; 8 joins 1, 5, 6 and 7.
    pub(crate) fn block() -> OpGraph {
        let predecessors = [vec![], vec![0], vec![0], vec![0], vec![0], vec![2], vec![3], vec![4], vec![1, 5, 6, 7]];
        OpGraph::from_predecessors(predecessors.to_vec())
    }

    fn diamond() -> OpGraph {
        OpGraph::from_predecessors(vec![vec![], vec![0], vec![0], vec![1, 2]])
    }

    #[test]
    fn invalid_schedules_are_refused() {
        let new = |stream: &[usize], order: &[OpId]| Schedule::new(&diamond(), stream.into(), order.into());
        for (stream, order, why) in [
            (&[0, 0, 0, 0][..], &[0, 2, 1][..], "3 are launched"),
            (&[0, 0, 0], &[0, 1, 2, 3], "3 ops have a stream"),
            (&[0; 4], &[0, 1, 1, 3], "launched twice"),
            (&[0; 4], &[0, 1, 2, 4], "does not exist"),
            (&[0; 4], &[0, 1, 3, 2], "op 3 is launched before op 2"),
        ] {
            let error = new(stream, order).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let stages =
            |barriers: &[usize]| Schedule::with_barriers(&diamond(), vec![0; 4], vec![0, 1, 2, 3], barriers.into());
        for barriers in [&[0][..], &[4], &[2, 2], &[3, 1]] {
            assert!(stages(barriers).is_err(), "{barriers:?}");
        }
        assert_eq!(new(&[7, 7, 3, 7], &[0, 2, 1, 3]).unwrap().stream, [0, 0, 1, 0]);
    }

    #[test]
    fn a_barrier_waits_for_every_op_without_a_successor() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![], vec![0], vec![1], vec![2]]);
        let schedule = Schedule::with_barriers(&graph, vec![0, 1, 0, 1, 0], vec![0, 1, 2, 3, 4], vec![3]).unwrap();
        assert_eq!(schedule.predecessors, [vec![], vec![], vec![0], vec![], vec![]]);
        let steps: Vec<_> = schedule.steps().into_iter().map(|step| (step.op, step.after)).collect();
        let expected = [
            (Some(0), vec![]),
            (Some(1), vec![]),
            (Some(2), vec![0]),
            (None, vec![1, 2]),
            (Some(3), vec![3]),
            (Some(4), vec![3]),
        ];
        assert_eq!(steps, expected);
    }
}
