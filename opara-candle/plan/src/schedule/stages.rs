//! Stages: groups of ops beside each other, one stage after the other.

use super::Schedule;
use crate::graph::OpGraph;
use crate::trace::OpId;
use crate::Result;

/// Groups of ops. Groups run beside each other, the ops of a group one after the other.
pub type Stage = Vec<Vec<OpId>>;

impl Schedule {
    /// The schedule that runs one stage after the other, each group of a stage on a stream of its own.
    ///
    /// There is a barrier between two stages, except where it would change nothing: behind a lone group, if all groups
    /// of the next stage wait for its last op anyway.
    ///
    /// # Errors
    /// As for [`Schedule::new`].
    ///
    /// # Complexity
    /// Linear in ops and edges, beside that of [`Schedule::with_barriers`].
    pub fn from_stages(graph: &OpGraph, stages: &[Stage]) -> Result<Self> {
        let mut stream = vec![0; graph.len()];
        let mut order = Vec::with_capacity(graph.len());
        let mut barriers = Vec::new();
        let mut before: Option<&Stage> = None;
        for stage in stages.iter().filter(|stage| stage.iter().any(|group| !group.is_empty())) {
            if before.is_some_and(|before| !follows(graph, before, stage)) {
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

/// Whether all of a stage starts after all of the one before without a barrier between them. Its first group shares the
/// stream of that one's lone group.
fn follows(graph: &OpGraph, before: &Stage, stage: &Stage) -> bool {
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
    fn a_barrier_stands_where_the_dependencies_do_not_say_as_much() {
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
