//! Which stream, when: policies assign a stream to every op and choose a launch order; the waits follow from both.

mod opara;
mod sequential;

pub use opara::{launch_order, stream_allocation};

use serde::{Deserialize, Serialize};

use crate::graph::{reduce::transitive_reduction, OpGraph};
use crate::profile::OpProfile;
use crate::trace::OpId;

/// How ops are assigned to streams and ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// One stream, in recorded order: what a plain CUDA graph of the module does.
    Sequential,
    /// Opara's stream allocation and launch order (Opara, Alg. 1 and Alg. 2).
    #[default]
    Opara,
}

impl Policy {
    /// Every policy, in the order in which tables list them.
    pub const ALL: [Policy; 2] = [Policy::Sequential, Policy::Opara];

    /// Schedules a graph; `profile` holds one entry an op.
    pub fn schedule(self, graph: &OpGraph, profile: &[OpProfile]) -> Schedule {
        match self {
            Policy::Sequential => sequential::schedule(graph),
            Policy::Opara => Schedule::new(graph, stream_allocation(graph), launch_order(graph, profile)),
        }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Policy::Sequential => "sequential",
            Policy::Opara => "opara",
        })
    }
}

/// A policy's name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: use sequential or opara")]
pub struct UnknownPolicy(String);

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Policy::ALL.into_iter().find(|p| p.to_string() == name).ok_or_else(|| UnknownPolicy(name.into()))
    }
}

/// A stream for every op, an order of launches, and what each launch waits for. Plain data.
///
/// Ops of one stream run one after the other in launch order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// For each op its stream, counted from 0.
    pub stream: Vec<usize>,
    /// Every op once, as they are launched.
    pub order: Vec<OpId>,
    /// For each op the ops right before which it may not start, ascending in launch order: its stream's predecessor
    /// and ops of other streams, less those that another one of them already waits for.
    pub predecessors: Vec<Vec<OpId>>,
}

impl Schedule {
    /// The schedule with the fewest waits for a stream assignment and a launch order.
    ///
    /// `order` must hold every op once, none before one that it depends on.
    pub fn new(graph: &OpGraph, stream: Vec<usize>, order: Vec<OpId>) -> Self {
        let mut schedule = Self { stream, order, predecessors: Vec::new() };
        let before = schedule.stream_predecessors();
        schedule.predecessors = if schedule.streams() <= 1 {
            // All that an op depends on lies before it.
            before.into_iter().map(|before| before.into_iter().collect()).collect()
        } else {
            schedule.with_fewest_waits(graph, &before)
        };
        schedule
    }

    fn with_fewest_waits(&self, graph: &OpGraph, before: &[Option<OpId>]) -> Vec<Vec<OpId>> {
        let order = &self.order;
        let mut position = vec![0; order.len()];
        for (at, &op) in order.iter().enumerate() {
            position[op] = at;
        }
        let mut needed: Vec<Vec<usize>> =
            order.iter().map(|&op| graph.predecessors(op).map(|p| position[p]).collect()).collect();
        let mut more = false;
        for (at, &op) in order.iter().enumerate() {
            if let Some(before) =
                before[op].map(|before| position[before]).filter(|before| !needed[at].contains(before))
            {
                needed[at].push(before);
                more = true;
            }
        }
        // Streams that are paths of the graph, which is reduced, add nothing to it.
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

    /// Ops of other streams that `op` waits for.
    pub fn waits(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        self.predecessors[op].iter().copied().filter(move |&p| self.stream[p] != self.stream[op])
    }

    /// Waits across streams in all.
    pub fn wait_count(&self) -> usize {
        (0..self.order.len()).map(|op| self.waits(op).count()).sum()
    }

    /// For each op the one before it on its stream.
    pub fn stream_predecessors(&self) -> Vec<Option<OpId>> {
        let mut last: Vec<Option<OpId>> = vec![None; self.streams()];
        let mut before = vec![None; self.order.len()];
        for &op in &self.order {
            before[op] = last[self.stream[op]].replace(op);
        }
        before
    }
}
