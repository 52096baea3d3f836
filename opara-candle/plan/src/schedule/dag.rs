//! The dependency graph itself, as a CUDA graph runs it without a stream assignment.

use super::{Problem, Schedule};
use crate::Result;

/// Every op waits for its dependencies and for nothing else, and ops are launched in recorded order. An op continues the stream
/// of one of its dependencies, since the driver spends time and memory on every stream.
///
/// # Complexity
/// Near-linear in ops and edges.
pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    Schedule::with_allocated_streams(problem.graph, (0..problem.graph.len()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use crate::graph::{Ancestors, OpGraph};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ops_wait_for_their_dependencies_alone(dag in dags()) {
            let graph = OpGraph::from_predecessors(dag);
            let schedule = schedule(&Problem { graph: &graph, profile: &[], trace: &Default::default() }).unwrap();
            let mut ancestors = Ancestors::default();
            let mut on_streams = 0;
            for (op, before) in schedule.stream_predecessors().into_iter().enumerate() {
                let predecessors: Vec<_> = graph.predecessors(op).collect();
                prop_assert_eq!(&schedule.predecessors[op], &predecessors);
                ancestors.push(&predecessors);
                prop_assert!(before.is_none_or(|before| ancestors.is_ordered(before, op)), "a stream makes {op} wait");
                on_streams += predecessors.iter().filter(|&&p| schedule.stream[p] == schedule.stream[op]).count();
            }
            prop_assert_eq!(schedule.wait_count() + on_streams, graph.edges());
        }
    }
}
