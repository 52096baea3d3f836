//! One stream, in recorded order.

use super::{Problem, Schedule};
use crate::Result;

pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    let ops = problem.graph.len();
    Schedule::new(problem.graph, vec![0; ops], (0..ops).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OpGraph;

    #[test]
    fn ops_form_a_chain_whatever_they_depend_on() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![], vec![0]]);
        let schedule = schedule(&Problem { graph: &graph, profile: &[], trace: &Default::default() }).unwrap();
        assert_eq!(schedule.predecessors, [vec![], vec![0], vec![1]]);
        assert_eq!((schedule.streams(), schedule.wait_count()), (1, 0));
    }
}
