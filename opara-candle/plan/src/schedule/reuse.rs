//! Reuses streams whose branches have ended.

use crate::graph::OpGraph;
use crate::trace::OpId;

/// Merges streams without losing concurrency: if a stream's first op depends on the last op of another stream, both become one.
/// The ops of a merged stream still depend on each other, so no op waits for more than before.
///
/// In a graph that forks and joins repeatedly, the branches of each fork reuse the streams of the fork before.
///
/// # Arguments
/// The stream of each op, where the ops of a stream form a path of the graph, as in [Alg. 1](super::stream_allocation); and all
/// ops in an order in which each comes after its dependencies.
///
/// # Returns
/// The stream of each op, numbered in the order of their first launch.
///
/// # Complexity
/// Almost linear in ops and edges.
pub(super) fn reuse_streams(graph: &OpGraph, stream: &[usize], order: &[OpId]) -> Vec<usize> {
    let streams = stream.iter().max().map_or(0, |s| s + 1);
    let mut last = vec![None; streams];
    order.iter().for_each(|&op| last[stream[op]] = Some(op));
    let mut ended = Ended { streams: vec![Vec::new(); graph.len()], above: (0..graph.len()).collect() };
    let mut renamed: Vec<Option<usize>> = vec![None; streams];
    let mut next = 0;
    let mut reused = vec![0; graph.len()];
    for &op in order {
        for p in graph.predecessors(op) {
            // An op that depends on `op` depends on all ops of the stream.
            if last[stream[p]].take_if(|last| *last == p).is_some() {
                ended.streams[op].push(reused[p]);
            }
        }
        reused[op] = *renamed[stream[op]].get_or_insert_with(|| {
            let free = std::iter::once(op).chain(graph.predecessors(op)).find_map(|op| ended.take(op));
            free.unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        });
        ended.above[op] = graph.predecessors(op).next().unwrap_or(op);
    }
    reused
}

/// Streams whose ops are all launched, and that can be reused.
struct Ended {
    /// For each op the streams whose last op it is the first to depend on.
    streams: Vec<Vec<usize>>,
    /// For each op one of its dependencies, where the search goes on; an op without dependencies names itself.
    above: Vec<OpId>,
}

impl Ended {
    /// Takes a stream that ended at `op` or at an op that `op` depends on.
    fn take(&mut self, op: OpId) -> Option<usize> {
        let mut at = op;
        while self.streams[at].is_empty() && self.above[at] != at {
            // Empty lists stay empty, so that the path can be shortened (as in union-find).
            let above = self.above[at];
            if self.streams[above].is_empty() {
                self.above[at] = self.above[above];
            }
            at = above;
        }
        self.streams[at].pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use crate::schedule::{stream_allocation, Schedule};
    use proptest::prelude::*;

    /// The schedules of Alg. 1's streams, reused and as they are.
    fn schedules(predecessors: Vec<Vec<usize>>) -> [Schedule; 2] {
        let graph = OpGraph::from_predecessors(predecessors);
        let (stream, order) = (stream_allocation(&graph), Vec::from_iter(0..graph.len()));
        [reuse_streams(&graph, &stream, &order), stream]
            .map(|stream| Schedule::new(&graph, stream, order.clone()).unwrap())
    }

    #[test]
    fn forks_reuse_the_streams_of_earlier_forks() {
        // 0 feeds 1, 2 and 3, which 4 joins, again and again.
        let predecessors = (0..40).map(|op| match op {
            0 => vec![],
            _ if op % 4 == 0 => vec![op - 3, op - 2, op - 1],
            _ => vec![op / 4 * 4],
        });
        let [reused, before] = schedules(predecessors.collect());
        assert_eq!((before.streams(), reused.streams()), (21, 3));
        assert_eq!((&reused.predecessors, &reused.order), (&before.predecessors, &before.order));
    }

    #[test]
    fn branches_that_may_run_in_parallel_keep_their_streams() {
        let [reused, before] = schedules(vec![vec![], vec![0], vec![0], vec![0], vec![1], vec![2]]);
        assert_eq!(reused.stream, before.stream);
    }

    proptest! {
        #[test]
        fn reuse_adds_no_wait(dag in dags()) {
            let [reused, before] = schedules(dag);
            prop_assert!(reused.streams() <= before.streams());
            prop_assert_eq!(reused.predecessors, before.predecessors);
        }
    }
}
