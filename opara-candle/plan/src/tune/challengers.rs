//! Challengers: schedules to benchmark against a scheduler's schedule before that is used.

use crate::schedule::{BuiltIn, Problem, Schedule, Scheduler};
use crate::Result;

/// Schedules to benchmark against `schedule`, which the named scheduler made: one stream; the graph's own edges in
/// recorded order; and the same schedule on few streams. Each stream costs the device's scheduler some time, and of
/// hundreds of streams it serves only some at once. The scheduler's choice among ready ops is a guess, which recorded
/// order can beat.
pub fn challengers(schedule: &Schedule, problem: &Problem, scheduler: &str) -> Result<Vec<(String, Schedule)>> {
    /// Above this many launches, challengers are not worth building: such graphs are wide, few streams run them as fast
    /// as many, and each graph of 50,000 launches takes a second and 0.1 GiB.
    const LAUNCHES: usize = 4096;
    /// Above this many streams, a challenger costs more memory than it may be worth: the driver takes about 100 KiB per
    /// branch of a graph, and never returns it.
    const BRANCHES: usize = 1024;
    /// The maximum number of host-device connections, which streams share.
    const STREAMS: usize = 32;
    if problem.graph.len() > LAUNCHES {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for scheduler in [BuiltIn::Sequential, BuiltIn::Dag] {
        found.push((scheduler.name(), scheduler.schedule(problem)?));
    }
    let steps = schedule.steps();
    found.retain(|(_, other)| other.streams() <= BRANCHES && other.steps() != steps);
    if schedule.streams() > STREAMS {
        found.push((scheduler.into(), schedule.clone().cap_streams(problem.graph, STREAMS)?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OpGraph;
    use crate::profile::OpProfile;
    use crate::trace::Trace;

    /// The challengers of Opara's schedule, as name and number of streams. Later ops have a lower demand.
    fn found(predecessors: Vec<Vec<usize>>) -> Vec<(String, usize)> {
        let ops = predecessors.len();
        let graph = OpGraph::from_predecessors(predecessors);
        let need = |op| OpProfile { demand: (ops - op) as f64, ..Default::default() };
        let profile: Vec<_> = (0..ops).map(need).collect();
        let problem = Problem { trace: &Trace::default(), graph: &graph, profile: &profile };
        let schedule = BuiltIn::Opara.schedule(&problem).unwrap();
        let found = challengers(&schedule, &problem, "opara").unwrap();
        found.into_iter().map(|(name, schedule)| (name, schedule.streams())).collect()
    }

    fn named(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
        expected.iter().map(|&(name, streams)| (name.into(), streams)).collect()
    }

    /// One op that `branches` others depend on.
    fn fork(branches: usize) -> Vec<Vec<usize>> {
        (0..=branches).map(|op| if op == 0 { vec![] } else { vec![0] }).collect()
    }

    #[test]
    fn a_chain_has_no_challenger() {
        assert_eq!(found(vec![vec![], vec![0], vec![1]]), []);
    }

    #[test]
    fn branches_are_tried_on_one_stream_and_in_recorded_order() {
        assert_eq!(found(vec![vec![], vec![0], vec![0]]), named(&[("sequential", 1), ("dag", 2)]));
    }

    #[test]
    fn many_streams_are_tried_on_few() {
        assert_eq!(found(fork(40)), named(&[("sequential", 1), ("dag", 40), ("opara", 32)]));
    }

    #[test]
    fn a_thousand_branches_are_too_many() {
        assert_eq!(found(fork(1025)), named(&[("sequential", 1), ("opara", 32)]));
    }

    #[test]
    fn graphs_of_thousands_of_launches_have_no_challenger() {
        assert_eq!(found(fork(4096)), []);
    }
}
