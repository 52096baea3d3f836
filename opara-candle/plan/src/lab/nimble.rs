//! Nimble's stream assignment. (Kwon et al., "Nimble: Lightweight and Parallel GPU Task Scheduling for Deep Learning",
//! NeurIPS 2020.)

use crate::graph::{matching::maximum_matching, OpGraph};
use crate::schedule::{Problem, Schedule};
use crate::Result;

/// [`stream_assignment`], launched in recorded order, which is topological.
pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    Schedule::new(problem.graph, stream_assignment(problem.graph), (0..problem.graph.len()).collect())
}

/// Nimble, Alg. 1: the paths of a maximum matching of the bipartite graph of all dependencies are the streams.
///
/// No two independent ops share a stream (Theorem 2). Among all assignments with that property, this one has the fewest
/// synchronisations: one for each edge outside the matching (Theorem 4).
///
/// # Arguments
/// `graph`: it is transitively reduced, and so the minimum equivalent graph of step 1.
///
/// # Returns
/// The stream of each op.
///
/// # Complexity
/// `O(E √V)`: the paper's Ford-Fulkerson takes `O(E V)`.
pub fn stream_assignment(graph: &OpGraph) -> Vec<usize> {
    let next = maximum_matching(graph);
    let mut stream: Vec<Option<usize>> = vec![None; graph.len()];
    let mut streams = 0..;
    // The ops of a path ascend, so the first op of a path opens its stream.
    let assign = |op: usize| {
        let own = stream[op].or_else(|| streams.next()).unwrap_or_default();
        if let Some(next) = next[op] {
            stream[next] = Some(own);
        }
        own
    };
    (0..graph.len()).map(assign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::stream_allocation;
    use crate::schedule::tests::block;
    use proptest::prelude::*;

    /// DAGs small enough to try every assignment.
    fn small() -> impl Strategy<Value = OpGraph> {
        (1usize..8)
            .prop_flat_map(|n| (0..n).map(|v| prop::collection::vec(any::<bool>(), v)).collect::<Vec<_>>())
            .prop_map(|rows| {
                let ends = |row: Vec<bool>| row.into_iter().enumerate().filter_map(|(p, on)| on.then_some(p)).collect();
                OpGraph::from_predecessors(rows.into_iter().map(ends).collect())
            })
    }

    /// For each op its direct and indirect dependencies.
    fn ancestors(graph: &OpGraph) -> Vec<Vec<bool>> {
        let mut all: Vec<Vec<bool>> = Vec::new();
        for op in 0..graph.len() {
            let mut own = vec![false; graph.len()];
            for p in graph.predecessors(op) {
                own[p] = true;
                own.iter_mut().zip(&all[p]).for_each(|(own, &also)| *own |= also);
            }
            all.push(own);
        }
        all
    }

    fn has_maximum_concurrency(graph: &OpGraph, stream: &[usize]) -> bool {
        let ancestors = ancestors(graph);
        (0..graph.len()).all(|b| (0..b).all(|a| ancestors[b][a] || stream[a] != stream[b]))
    }

    /// Edges between different streams, as the paper counts them.
    fn synchronisations(graph: &OpGraph, stream: &[usize]) -> usize {
        let edges = (0..graph.len()).flat_map(|op| graph.predecessors(op).map(move |p| (p, op)));
        edges.filter(|&(a, b)| stream[a] != stream[b]).count()
    }

    /// Every partition of the ops into streams, numbered by their first op.
    fn assignments(ops: usize) -> Vec<Vec<usize>> {
        (0..ops).fold(vec![vec![]], |all, _| {
            let extend = |stream: Vec<usize>| {
                let open = stream.iter().max().map_or(0, |s| s + 1);
                (0..=open).map(move |next| [&stream[..], &[next]].concat())
            };
            all.into_iter().flat_map(extend).collect()
        })
    }

    #[test]
    fn streams_of_a_block_by_hand() {
        // Every op but 0 and the heads of three branches follows another one: 6 of 11 edges need a synchronisation.
        let schedule = Schedule::new(&block(), stream_assignment(&block()), (0..9).collect()).unwrap();
        assert_eq!((schedule.streams(), schedule.wait_count()), (4, 6));
    }

    #[test]
    fn opara_opens_a_stream_where_nimble_needs_none() {
        // Opara's third op follows the first one, so the last one, which depends on the first alone, finds it taken.
        let graph = OpGraph::from_predecessors(vec![vec![], vec![], vec![0, 1], vec![0]]);
        assert_eq!(stream_assignment(&graph), [0, 1, 1, 0]);
        assert_eq!(stream_allocation(&graph), [0, 1, 0, 2]);
    }

    proptest! {
        #[test]
        fn independent_ops_share_no_stream(graph in small()) {
            prop_assert!(has_maximum_concurrency(&graph, &stream_assignment(&graph)));
        }

        #[test]
        fn synchronisations_are_the_edges_outside_the_matching(graph in small()) {
            let matched = maximum_matching(&graph).iter().flatten().count();
            let stream = stream_assignment(&graph);
            prop_assert_eq!(synchronisations(&graph, &stream), graph.edges() - matched);
            let schedule = Schedule::new(&graph, stream, (0..graph.len()).collect()).unwrap();
            prop_assert_eq!(schedule.wait_count(), graph.edges() - matched);
        }

        #[test]
        fn no_assignment_of_maximum_concurrency_has_fewer_synchronisations(graph in small()) {
            let fewest = assignments(graph.len())
                .iter()
                .filter(|stream| has_maximum_concurrency(&graph, stream))
                .map(|stream| synchronisations(&graph, stream))
                .min();
            prop_assert_eq!(Some(synchronisations(&graph, &stream_assignment(&graph))), fewest);
        }
    }
}
