//! List scheduling by the critical path. (Graham 1969; the upward rank is that of HEFT: Topcuoglu, Hariri, Wu,
//! "Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", IEEE TPDS 2002.)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Problem, Schedule};
use crate::trace::OpId;
use crate::Result;

/// The bits of a time or a rank. The bits of non-negative floats compare like the floats.
type Key = u64;

/// Tolerance for rounding errors in sums of shares.
const SLACK: f64 = 1e-9;

/// Simulates the device. Whenever an op ends, ready ops start, the one with the longest remaining path first, while the device
/// has room. The order of starts is the launch order. An op that does not fit blocks the ops behind it, as on a GPU.
///
/// An op continues the stream of its first predecessor that has no successor on its stream yet, as in Opara's Alg. 1. Otherwise
/// it takes the stream that has been idle the longest: that costs no time in the simulation, and the op probably depends on it
/// anyway. If no stream is idle, it opens one.
///
/// # Complexity
/// `O(V log V + E)`, plus that of [`Schedule::new`].
pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    let Problem { graph, profile, .. } = *problem;
    let us = |op: OpId| profile[op].us.max(0.);
    let ranks = upward_ranks(problem);
    let entry = |op: OpId| (ranks[op].to_bits(), Reverse(op));
    let mut missing: Vec<usize> = (0..graph.len()).map(|op| graph.predecessors(op).count()).collect();
    let mut ready: BinaryHeap<(Key, Reverse<OpId>)> =
        (0..graph.len()).filter(|&op| missing[op] == 0).map(entry).collect();
    let mut running: BinaryHeap<Reverse<(Key, OpId)>> = BinaryHeap::new();
    let (mut now, mut taken) = (0., 0.);
    let mut streams = Streams::new(graph.len());
    let mut order = Vec::with_capacity(graph.len());
    loop {
        while let Some(&(_, Reverse(op))) = ready.peek() {
            if !running.is_empty() && taken + profile[op].share > 1. + SLACK {
                break;
            }
            ready.pop();
            taken += profile[op].share;
            streams.start(op, graph.predecessors(op));
            order.push(op);
            running.push(Reverse((f64::to_bits(now + us(op)), op)));
        }
        let Some(&Reverse((end, _))) = running.peek() else { break };
        now = f64::from_bits(end);
        while let Some(&Reverse((_, op))) = running.peek().filter(|Reverse((at, _))| *at == end) {
            running.pop();
            taken -= profile[op].share;
            streams.idle.push_back(op);
            for successor in graph.successors(op) {
                missing[successor] -= 1;
                ready.extend((missing[successor] == 0).then(|| entry(successor)));
            }
        }
    }
    Schedule::new(graph, streams.of, order)
}

/// For each op the duration of the longest path from it to the end.
fn upward_ranks(problem: &Problem) -> Vec<f64> {
    let Problem { graph, profile, .. } = *problem;
    let mut ranks = vec![0.; graph.len()];
    for op in (0..graph.len()).rev() {
        ranks[op] = profile[op].us.max(0.) + graph.successors(op).map(|s| ranks[s]).fold(0., f64::max);
    }
    ranks
}

/// The streams that are open.
struct Streams {
    /// The stream of each op.
    of: Vec<usize>,
    /// The last op of each stream.
    last: Vec<OpId>,
    /// Ops that have ended, the earliest first. If such an op is still its stream's last, the stream is idle.
    idle: VecDeque<OpId>,
}

impl Streams {
    fn new(ops: usize) -> Self {
        Self { of: vec![0; ops], last: Vec::new(), idle: VecDeque::new() }
    }

    fn start(&mut self, op: OpId, mut predecessors: impl Iterator<Item = OpId>) {
        let has_successor = |op: OpId| self.last[self.of[op]] != op;
        let before = predecessors.find(|&p| !has_successor(p)).or_else(|| {
            while self.idle.front().is_some_and(|&op| has_successor(op)) {
                self.idle.pop_front();
            }
            self.idle.front().copied()
        });
        self.of[op] = before.map_or(self.last.len(), |before| self.of[before]);
        match self.last.get_mut(self.of[op]) {
            Some(last) => *last = op,
            None => self.last.push(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use crate::graph::OpGraph;
    use crate::profile::OpProfile;
    use crate::schedule::tests::block;
    use proptest::prelude::*;

    fn scheduled(graph: &OpGraph, profile: &[OpProfile]) -> Schedule {
        schedule(&Problem { graph, profile, trace: &Default::default() }).unwrap()
    }

    fn op(us: f64, share: f64) -> OpProfile {
        OpProfile { us, share, ..Default::default() }
    }

    #[test]
    fn the_longest_branch_of_a_block_goes_first() {
        // Paths from the branches' heads to the end: 1: 3; 2-5: 9; 3-6: 5; 4-7: 7. Two ops fit at a time.
        let times = [1., 2., 4., 2., 3., 4., 2., 3., 1.];
        let profile = times.map(|us| op(us, 0.5));
        let schedule = scheduled(&block(), &profile);
        // At 1: 2 and 4. At 4, 4 ends: of 7 (rank 4), 3 (5) and 1 (3) the third goes first. At 5, 2 ends: 5. At 6, 3
        // ends: 7. At 9, 5 and 7 have ended: 6 and 1, which both have rank 3 and go by number.
        assert_eq!(schedule.order, [0, 2, 4, 3, 5, 7, 1, 6, 8]);
        // 4 opens a stream, since 2 continues that of 0; 3 takes the idle stream of 4; later ops find idle streams, too.
        assert_eq!(schedule.streams(), 2);
    }

    #[test]
    fn an_op_that_does_not_fit_blocks_the_others() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![], vec![]]);
        let schedule = scheduled(&graph, &[op(2., 0.5), op(9., 0.5), op(5., 1.)]);
        assert_eq!(schedule.order, [1, 2, 0]);
        assert_eq!(schedule.streams(), 1, "each finds the stream idle");
    }

    #[test]
    fn without_limits_independent_ops_share_no_stream() {
        let graph = OpGraph::from_predecessors(vec![vec![]; 5]);
        assert_eq!(scheduled(&graph, &[op(1., 0.); 5]).streams(), 5);
    }

    proptest! {
        #[test]
        fn launches_fill_the_device_longest_path_first(dag in dags(), seed in any::<u64>()) {
            let graph = OpGraph::from_predecessors(dag);
            let random = |i: usize, below: u64| (seed.rotate_left(i as u32 * 5) % below) as f64;
            let profile: Vec<_> = (0..graph.len()).map(|i| op(1. + random(i, 7), random(i + 20, 5) / 4.)).collect();
            let ranks = upward_ranks(&Problem { graph: &graph, profile: &profile, trace: &Default::default() });
            let order = scheduled(&graph, &profile).order;
            // The same simulation without heaps: one step of time after the other.
            let mut end: Vec<Option<f64>> = vec![None; graph.len()];
            let mut expected = Vec::new();
            for now in 0..10 * graph.len() + 1 {
                let now = now as f64;
                loop {
                    let ended = |p: OpId| end[p].is_some_and(|end| end <= now);
                    let ready = (0..graph.len()).filter(|&v| end[v].is_none() && graph.predecessors(v).all(ended));
                    let first = ready.max_by(|&a, &b| ranks[a].total_cmp(&ranks[b]).then(b.cmp(&a)));
                    let running = || (0..graph.len()).filter(|&v| end[v].is_some_and(|end| end > now));
                    let taken: f64 = running().map(|v| profile[v].share).sum();
                    let Some(v) = first.filter(|&v| running().count() == 0 || taken + profile[v].share <= 1. + SLACK)
                    else {
                        break;
                    };
                    end[v] = Some(now + profile[v].us);
                    expected.push(v);
                }
            }
            prop_assert_eq!(order, expected);
        }
    }
}
