//! One stream, in recorded order.

use super::Schedule;
use crate::graph::OpGraph;

pub(super) fn schedule(graph: &OpGraph) -> Schedule {
    Schedule::new(graph, vec![0; graph.len()], (0..graph.len()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_form_a_chain_whatever_they_depend_on() {
        let schedule = schedule(&OpGraph::from_predecessors(vec![vec![], vec![], vec![0]]));
        assert_eq!(schedule.predecessors, [vec![], vec![0], vec![1]]);
        assert_eq!((schedule.streams(), schedule.wait_count()), (1, 0));
    }
}
