//! Schedules that a plan's own has to beat on the device before it is kept.

use crate::backend::Replay;
use crate::measure::Replays;
use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::timing::Latency;
use crate::tune::Contestant;
use crate::{Error, Result};

/// The fastest rival of the plan's schedule, if it is faster than the base, which runs that, beyond noise.
pub(crate) fn faster(
    track: &mut Replays,
    problem: &Problem,
    policy: &str,
) -> Result<Option<Contestant<Box<dyn Replay>>>> {
    const NOISE: f64 = 0.01;
    let mut best: Option<Contestant<Box<dyn Replay>>> = None;
    // One after the other: the driver makes the next one's graph of the memory of those that have lost.
    for (name, schedule) in rivals(&track.plan.schedule, problem, policy)? {
        let holder = best.as_ref().map_or(track.base, |best| &*best.runner);
        match in_turns(track, holder, name.clone(), schedule) {
            Ok((rival, bar)) if rival.median() < bar * (1. - NOISE) => best = Some(rival),
            Ok(_) => {}
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            // The device may lack the memory for it: what there is runs.
            Err(error) => tracing::warn!(%error, rival = name, "a schedule is left untried"),
        }
    }
    Ok(best)
}

/// A schedule that has run in turns with what holds the place so far, and the median time of that.
fn in_turns(
    track: &mut Replays,
    holder: &dyn Replay,
    name: String,
    schedule: Schedule,
) -> Result<(Contestant<Box<dyn Replay>>, f64)> {
    /// Of each; medians are taken.
    const ROUNDS: usize = 9;
    let mut rival = Contestant::new(name, schedule, track)?;
    let mut bar = Vec::new();
    for inputs in track.inputs.iter().cycle().take(ROUNDS) {
        bar.push(track.lap(holder, inputs)?);
        rival.samples.push(track.lap(&*rival.runner, inputs)?);
    }
    Ok((rival, Latency::of(bar).median_us))
}

/// What a GPU may run faster than the plan's schedule, by policy: all on one stream, the graph's own edges in recorded
/// order, and the same on few streams. Each stream costs the device's scheduler something, and of hundreds it serves only
/// some at a time; and which of the ready ops starts first is a guess that recorded order can beat.
fn rivals(schedule: &Schedule, problem: &Problem, policy: &str) -> Result<Vec<(String, Schedule)>> {
    /// Launches above which rivals are not worth their building: such graphs are wide, few streams run them as fast as many,
    /// and each graph of 50,000 launches takes a second and a tenth of a GiB.
    const LAUNCHES: usize = 4096;
    /// Streams above which a rival costs more memory than it may be worth: the driver takes some 100 KiB for each branch of a
    /// graph and does not give them back.
    const BRANCHES: usize = 1024;
    /// What the host's connections to a device are at most, which streams share.
    const STREAMS: usize = 32;
    if problem.graph.len() > LAUNCHES {
        return Ok(Vec::new());
    }
    let mut rivals = Vec::new();
    for rival in [Policy::Sequential, Policy::Dag] {
        rivals.push((rival.name(), rival.schedule(problem)?));
    }
    let steps = schedule.steps();
    rivals.retain(|(_, rival)| rival.streams() <= BRANCHES && rival.steps() != steps);
    if schedule.streams() > STREAMS {
        rivals.push((policy.into(), schedule.clone().sharing(problem.graph, STREAMS)?));
    }
    Ok(rivals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OpGraph;
    use crate::profile::OpProfile;
    use crate::trace::Trace;

    /// Names and streams of what Opara's schedule has to beat, where later ops need less.
    fn found(predecessors: Vec<Vec<usize>>) -> Vec<(String, usize)> {
        let ops = predecessors.len();
        let graph = OpGraph::from_predecessors(predecessors);
        let need = |op| OpProfile { demand: (ops - op) as f64, ..Default::default() };
        let profile: Vec<_> = (0..ops).map(need).collect();
        let problem = Problem { trace: &Trace::default(), graph: &graph, profile: &profile };
        let schedule = Policy::Opara.schedule(&problem).unwrap();
        let rivals = rivals(&schedule, &problem, "opara").unwrap();
        rivals.into_iter().map(|(name, schedule)| (name, schedule.streams())).collect()
    }

    fn named(rivals: &[(&str, usize)]) -> Vec<(String, usize)> {
        rivals.iter().map(|&(name, streams)| (name.into(), streams)).collect()
    }

    /// An op that so many others depend on.
    fn fork(branches: usize) -> Vec<Vec<usize>> {
        (0..=branches).map(|op| if op == 0 { vec![] } else { vec![0] }).collect()
    }

    #[test]
    fn a_chain_has_no_rival() {
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
    fn graphs_of_thousands_of_launches_have_no_rival() {
        assert_eq!(found(fork(4096)), []);
    }
}
