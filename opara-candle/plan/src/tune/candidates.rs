//! The initial candidates of a search.

use hashbrown::HashSet;

use crate::schedule::{BuiltIn, Problem, Schedule, Scheduler};
use crate::trace::OpId;
use crate::Result;

/// The stream limits to try.
const STREAMS: [usize; 8] = [2, 3, 4, 6, 8, 12, 16, 32];

/// A schedule with its description.
pub(super) struct Candidate {
    pub name: String,
    pub schedule: Schedule,
}

/// The schedule of every scheduler.
pub(super) fn schedulers(problem: &Problem) -> Result<Vec<Candidate>> {
    let candidate =
        |scheduler: BuiltIn| Ok(Candidate { name: scheduler.name(), schedule: scheduler.schedule(problem)? });
    BuiltIn::FIXED.into_iter().map(candidate).collect()
}

/// Combinations of the schedulers' schedules, without duplicates: the streams of one scheduler with the launch order of
/// another; limited numbers of streams; and each scheduler with its critical path at high priority.
pub(super) fn others(problem: &Problem, schedulers: &[Candidate]) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    let mut known: HashSet<Schedule> = schedulers.iter().map(|c| c.schedule.clone()).collect();
    let mut add = |name: String, schedule: Schedule| {
        if known.insert(schedule.clone()) {
            candidates.push(Candidate { name, schedule });
        }
    };
    let parallel = |c: &&Candidate| c.schedule.streams() > 1 && c.schedule.barriers.is_empty();
    for a in schedulers.iter().filter(parallel) {
        for b in schedulers.iter().filter(|b| b.schedule.barriers.is_empty()) {
            let schedule = Schedule::new(problem.graph, a.schedule.stream.clone(), b.schedule.order.clone())?;
            add(format!("{}'s streams in {}'s order", a.name, b.name), schedule);
        }
    }
    let (path, _) = problem.graph.critical_path(&problem.profile.iter().map(|op| op.us).collect::<Vec<_>>());
    let by_path = schedulers.iter().find(|c| c.name == BuiltIn::CriticalPath.as_str());
    if let Some(Candidate { schedule: Schedule { order, .. }, .. }) = by_path {
        for limit in STREAMS {
            let schedule = Schedule::new(problem.graph, list_schedule(problem, order, limit), order.clone())?;
            add(format!("{limit} streams"), schedule);
        }
    }
    for Candidate { name, schedule } in schedulers.iter().filter(parallel) {
        // A path is ascending.
        let schedule = Schedule { urgent: path.clone(), ..schedule.clone() };
        add(format!("{name}, critical path urgent"), schedule);
    }
    Ok(candidates)
}

/// Assigns ops, in this order, to at most `limit` streams: each op to the stream where it can start first, preferably
/// that of a predecessor.
fn list_schedule(problem: &Problem, order: &[OpId], limit: usize) -> Vec<usize> {
    let Problem { graph, profile, .. } = *problem;
    let mut free = vec![0f64; limit];
    let mut end = vec![0f64; graph.len()];
    let mut stream = vec![0; graph.len()];
    for &op in order {
        let ready = graph.predecessors(op).map(|p| end[p]).fold(0., f64::max);
        let start = |s: usize| free[s].max(ready);
        let follows = |s: usize| graph.predecessors(op).any(|p| stream[p] == s && end[p] == free[s]);
        let key = |s: &usize| (start(*s), !follows(*s), std::cmp::Reverse((free[*s] * 1e3) as u64));
        let chosen = (0..limit).min_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
        });
        let chosen = chosen.unwrap_or(0);
        end[op] = start(chosen) + profile[op].us;
        (stream[op], free[chosen]) = (chosen, end[op]);
    }
    stream
}
