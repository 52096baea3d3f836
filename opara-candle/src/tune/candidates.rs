//! Schedules to begin with.

use hashbrown::HashSet;

use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::trace::OpId;
use crate::Result;

/// Numbers of streams that are tried.
const STREAMS: [usize; 8] = [2, 3, 4, 6, 8, 12, 16, 32];

/// A schedule with what it is in words.
pub(super) struct Candidate {
    pub name: String,
    pub schedule: Schedule,
}

/// Every policy's schedule; then, without those that are one of these, the streams of one policy with the launch order of
/// another, limited numbers of streams, and each policy with its critical path first.
pub(super) fn all(problem: &Problem) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for policy in Policy::FIXED {
        candidates.push(Candidate { name: policy.name(), schedule: policy.schedule(problem)? });
    }
    let policies = candidates.len();
    let mut known: HashSet<Schedule> = candidates.iter().map(|c| c.schedule.clone()).collect();
    let mut add = |candidates: &mut Vec<Candidate>, name: String, schedule: Schedule| {
        if known.insert(schedule.clone()) {
            candidates.push(Candidate { name, schedule });
        }
    };
    let parallel = |c: &Candidate| c.schedule.streams() > 1 && c.schedule.barriers.is_empty();
    for streams in 0..policies {
        for order in 0..policies {
            let (a, b) = (&candidates[streams], &candidates[order]);
            if parallel(a) && b.schedule.barriers.is_empty() {
                let name = format!("{}'s streams in {}'s order", a.name, b.name);
                let schedule = Schedule::new(problem.graph, a.schedule.stream.clone(), b.schedule.order.clone())?;
                add(&mut candidates, name, schedule);
            }
        }
    }
    let (path, _) = problem.graph.critical_path(&problem.profile.iter().map(|op| op.us).collect::<Vec<_>>());
    let order = Policy::CriticalPath.schedule(problem)?.order;
    for limit in STREAMS {
        let schedule = Schedule::new(problem.graph, onto(problem, &order, limit), order.clone())?;
        add(&mut candidates, format!("{limit} streams"), schedule);
    }
    for policy in 0..policies {
        let Candidate { name, schedule } = &candidates[policy];
        if parallel(&candidates[policy]) {
            let (name, mut schedule) = (format!("{name}, critical path urgent"), schedule.clone());
            schedule.urgent = path.clone();
            schedule.urgent.sort_unstable();
            add(&mut candidates, name, schedule);
        }
    }
    Ok(candidates)
}

/// Streams for ops in this order, so many at most: each op goes where it can start first, and of such streams to that of
/// a predecessor.
fn onto(problem: &Problem, order: &[OpId], limit: usize) -> Vec<usize> {
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
