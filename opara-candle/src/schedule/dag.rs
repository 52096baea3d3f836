//! The dependencies themselves, without streams: what a CUDA graph runs if nobody assigns any.

use super::{Problem, Schedule};
use crate::Result;

/// Every op on a stream of its own, launched in recorded order: it waits for what it depends on and nothing else.
///
/// # Complexity
/// Linear in ops and edges.
pub(super) fn schedule(problem: &Problem) -> Result<Schedule> {
    let ops = problem.graph.len();
    Schedule::new(problem.graph, (0..ops).collect(), (0..ops).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use crate::graph::OpGraph;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ops_wait_for_their_dependencies_alone(dag in dags()) {
            let graph = OpGraph::from_predecessors(dag);
            let schedule = schedule(&Problem { graph: &graph, profile: &[], trace: &Default::default() }).unwrap();
            for op in 0..graph.len() {
                prop_assert_eq!(&schedule.predecessors[op], &graph.predecessors(op).collect::<Vec<_>>());
            }
            prop_assert_eq!(schedule.wait_count(), graph.edges());
        }
    }
}
