//! Streams that begin where others have ended.

use crate::graph::OpGraph;
use crate::trace::OpId;

/// Fewer streams for the same concurrency: one whose first op depends on the last op of another goes on with that stream.
/// What runs on a stream still depends on each other, so nothing waits for more than before.
///
/// Of a graph that forks and joins again and again, the branches of one fork take the streams of the one before it.
///
/// # Arguments
/// For each op its stream, where ops of one stream form a path of the graph, as [Alg. 1](super::stream_allocation) has it;
/// and every op once, none before one that it depends on.
///
/// # Returns
/// For each op its stream, numbered in the order of their first launch.
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
            // What depends on `op` depends on all that the stream ran.
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

/// Streams that have ended.
struct Ended {
    /// By the first op that depends on their last one.
    streams: Vec<Vec<usize>>,
    /// For each op one that it depends on, where to look next; an op without any names itself.
    above: Vec<OpId>,
}

impl Ended {
    /// A stream that ended above `op`, or there.
    fn take(&mut self, op: OpId) -> Option<usize> {
        let mut at = op;
        while self.streams[at].is_empty() && self.above[at] != at {
            // Lists that are empty stay so: the way gets shorter each time.
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
    fn forks_take_the_streams_of_forks_before_them() {
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
    fn branches_that_may_run_at_a_time_keep_their_own() {
        let [reused, before] = schedules(vec![vec![], vec![0], vec![0], vec![0], vec![1], vec![2]]);
        assert_eq!(reused.stream, before.stream);
    }

    proptest! {
        #[test]
        fn nothing_waits_for_more(dag in dags()) {
            let [reused, before] = schedules(dag);
            prop_assert!(reused.streams() <= before.streams());
            prop_assert_eq!(reused.predecessors, before.predecessors);
        }
    }
}
