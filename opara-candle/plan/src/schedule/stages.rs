//! Stages: the groups of a stage run in parallel, and stages run one after another.

use super::Schedule;
use crate::graph::OpGraph;
use crate::trace::OpId;
use crate::Result;

/// Groups of ops that run in parallel. The ops of one group run in sequence.
pub type Stage = Vec<Vec<OpId>>;

impl Schedule {
    /// A schedule that runs the stages in sequence, and each group of a stage on its own stream.
    ///
    /// Two stages are separated by a barrier, unless the first has one group only and all groups of the second depend on that
    /// group's last op: then the barrier would add nothing.
    ///
    /// # Errors
    /// As for [`Schedule::new`].
    ///
    /// # Complexity
    /// Linear in ops and edges, plus that of [`Schedule::with_barriers`].
    pub fn from_stages(graph: &OpGraph, stages: &[Stage]) -> Result<Self> {
        let mut stream = vec![0; graph.len()];
        let mut order = Vec::with_capacity(graph.len());
        let mut barriers = Vec::new();
        let mut before: Option<&Stage> = None;
        for stage in stages.iter().filter(|stage| stage.iter().any(|group| !group.is_empty())) {
            if before.is_some_and(|before| !is_ordered_without_barrier(graph, before, stage)) {
                barriers.push(order.len());
            }
            for (own, group) in stage.iter().enumerate() {
                for &op in group {
                    order.push(op);
                    if let Some(stream) = stream.get_mut(op) {
                        *stream = own;
                    }
                }
            }
            before = Some(stage);
        }
        Self::with_barriers(graph, stream, order, barriers)
    }
}

/// Does `stage` start after all of `before` even without a barrier? If `before` has one group, the first group of `stage` is on
/// the same stream; the other groups must depend on its last op.
fn is_ordered_without_barrier(graph: &OpGraph, before: &Stage, stage: &Stage) -> bool {
    let [lone] = &before[..] else { return false };
    let waits =
        |group: &Vec<OpId>| group.first().is_some_and(|&op| graph.predecessors(op).any(|p| Some(&p) == lone.last()));
    stage.iter().skip(1).all(waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests::block;

    #[test]
    fn there_is_a_barrier_unless_dependencies_order_the_stages() {
        let stages = [vec![vec![0]], vec![vec![1], vec![2, 5], vec![3]], vec![vec![4, 7], vec![6]], vec![vec![8]]];
        let schedule = Schedule::from_stages(&block(), &stages).unwrap();
        assert_eq!(schedule.order, [0, 1, 2, 5, 3, 4, 7, 6, 8]);
        assert_eq!(schedule.stream, [0, 0, 1, 2, 0, 1, 1, 0, 0]);
        assert_eq!(schedule.barriers, [5, 8], "1, 2 and 3 wait for 0 by themselves");
    }

    #[test]
    fn an_op_that_depends_on_nothing_starts_no_earlier_than_its_stage() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![]]);
        let schedule = Schedule::from_stages(&graph, &[vec![vec![0]], vec![vec![1], vec![2]]]).unwrap();
        assert_eq!(schedule.barriers, [1]);
        let lone = Schedule::from_stages(&graph, &[vec![vec![0, 1]], vec![], vec![vec![2]]]).unwrap();
        assert_eq!((lone.barriers.as_slice(), &lone.predecessors[2]), (&[][..], &vec![1]), "its stream holds it back");
    }

    #[test]
    fn stages_that_are_no_schedule_are_refused() {
        for stages in [vec![], vec![vec![vec![0, 9]]], vec![vec![(1..9).collect()], vec![vec![0]]]] {
            assert!(Schedule::from_stages(&block(), &stages).is_err(), "{stages:?}");
        }
    }
}
