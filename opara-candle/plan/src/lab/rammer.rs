//! The wavefront: breadth-first waves with a barrier between them. (Rammer⁻ in Opara, Sec. V-A, after Ma et al.,
//! "Rammer: Enabling Holistic Deep Learning Compiler Optimizations with rTasks", OSDI 2020.)

use crate::schedule::{Problem, Schedule, Stage};
use crate::Result;

/// Ops of one depth form a wave, each on a stream of its own.
///
/// # Complexity
/// Linear in ops and edges.
pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    let graph = problem.graph;
    let mut waves: Vec<Stage> = vec![Stage::new(); graph.depth()];
    (0..graph.len()).for_each(|op| waves[graph.level(op)].push(vec![op]));
    Schedule::from_stages(graph, &waves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use crate::graph::OpGraph;
    use crate::schedule::tests::block;
    use proptest::prelude::*;

    fn scheduled(graph: &OpGraph) -> Schedule {
        schedule(&Problem { graph, profile: &[], trace: &Default::default() }).unwrap()
    }

    #[test]
    fn waves_of_a_block_by_hand() {
        let schedule = scheduled(&block());
        assert_eq!(schedule.order, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        // The first wave is op 0 alone. All ops of the second depend on it, so that there is no barrier between them.
        assert_eq!((schedule.barriers.as_slice(), schedule.streams()), (&[5, 8][..], 4));
    }

    proptest! {
        #[test]
        fn a_wave_starts_when_the_wave_before_has_ended(dag in dags()) {
            let graph = OpGraph::from_predecessors(dag);
            let steps = scheduled(&graph).steps();
            let mut finished: Vec<Vec<bool>> = Vec::new();
            for step in &steps {
                let mut own = vec![false; steps.len()];
                for &before in &step.after {
                    own[before] = true;
                    own.iter_mut().zip(&finished[before]).for_each(|(own, &also)| *own |= also);
                }
                finished.push(own);
            }
            for (second, b) in steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.op?))) {
                for (first, a) in steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.op?))) {
                    prop_assert_eq!(finished[second][first], graph.level(a) < graph.level(b), "{} and {}", a, b);
                }
            }
        }
    }
}
