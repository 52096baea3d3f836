//! The tuned policy: proposes schedules, runs each, and keeps what is faster beyond noise.
//!
//! Which schedule is the fastest depends on the device in ways that no model of it knows. So every policy's schedule
//! enters a race, then every combination of their streams and launch orders, few streams, and priorities for what is
//! critical; from the winner on, small random changes do. Runs take turns, so that a device that slows down does so
//! for all. At the end the winner is built anew and held against the best policy once more: what does not hold up was
//! noise.

mod cache;
mod candidates;
pub mod challengers;
mod neighbours;
mod policy;
mod race;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::cache::Cache;
pub use self::race::{race, Contestant, Track};

use self::candidates::Candidate;
use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::simulate::{simulate, Device};
use crate::{disk_cache, Error, Result};

/// Runs of each contestant in the first race, and of those that are left in the second and in the last one.
const ROUNDS: [usize; 3] = [9, 25, 51];

/// Contestants of the second race.
const FINALISTS: usize = 6;

/// Share of the budget that choosing among what to begin with, and each race, may take.
const SHARE: f64 = 0.25;

/// Changes that are tried in a search by simulation.
const SIMULATED: usize = 64;

/// Changes that are tried beside each other.
const LITTER: usize = 4;

/// What a schedule must be faster by at least, as a share of the time, to count as faster.
pub(crate) const NOISE: f64 = 0.003;

/// Is told how far a search is.
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// How a tuned schedule is searched for.
#[derive(Clone)]
#[non_exhaustive]
pub struct Tuning {
    /// Time that trying schedules may take; the first races and the last one are run in any case. Default: 2 s.
    pub budget: Duration,
    /// Changes to the winner that are tried at most. Default: 1000.
    pub proposals: usize,
    /// Seed of the changes. The same seed proposes the same changes as long as the same ones win. Default: 0.
    pub seed: u64,
    /// Folder that keeps plans from one start of the program to the next; `None` keeps none. It is bounded like that of
    /// compiled kernels. Default: `opara-candle` in the user's folder for caches.
    pub cache: Option<PathBuf>,
    /// Called with how far the search is.
    pub progress: Option<OnProgress>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { budget: Duration::from_secs(2), proposals: 1000, seed: 0, cache: disk_cache::folder(), progress: None }
    }
}

impl Tuning {
    /// The same with this much time for trying schedules.
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// The same with this many changes at most.
    pub fn proposals(self, proposals: usize) -> Self {
        Self { proposals, ..self }
    }

    /// The same with this seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The same with this folder for plans, or with none.
    pub fn cache(self, cache: Option<PathBuf>) -> Self {
        Self { cache, ..self }
    }

    /// The same with somebody who is told how far the search is.
    pub fn on_progress(self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }
}

impl std::fmt::Debug for Tuning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { budget, proposals, seed, cache, progress: _ } = self;
        f.debug_struct("Tuning")
            .field("budget", budget)
            .field("proposals", proposals)
            .field("seed", seed)
            .field("cache", cache)
            .finish_non_exhaustive()
    }
}

/// How far a search is.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Share of the budget that is used, from 0 to 1.
    pub share: f64,
    /// Schedules tried.
    pub tried: usize,
    /// Microseconds of the best so far.
    pub best_us: f64,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Findings {
    /// What the schedule is, in words.
    pub origin: String,
    /// Median of its runs in microseconds.
    pub us: f64,
    /// Every policy's median in microseconds, and those of the combinations, fastest first.
    pub ranking: Vec<(String, f64)>,
    /// Schedules tried.
    pub tried: usize,
    /// Changes that were kept.
    pub kept: usize,
    /// How much slower the winner's schedule was when it was built anew at the end, as a share of its time: what two
    /// builds of one schedule differ by.
    pub drift: f64,
    /// Whether the plan was found in the cache, and nothing was run.
    pub cached: bool,
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { origin, us, tried, kept, drift, .. } = self;
        write!(f, "{origin}: {us:.1} us, ")?;
        match self.cached {
            true => f.write_str("kept from an earlier start"),
            false => write!(f, "{tried} schedules tried, {kept} changes kept, drift {:.1} %", 100. * drift),
        }
    }
}

/// A schedule that won, with what ran it.
pub struct Winner<R> {
    /// The schedule.
    pub schedule: Schedule,
    /// What the track made of it.
    pub runner: R,
    /// How it was found.
    pub findings: Findings,
}

/// Searches for the fastest schedule on a track.
///
/// # Errors
/// Those of the track.
pub fn search<T: Track>(problem: &Problem, track: &mut T, tuning: &Tuning) -> Result<Winner<T::Runner>, T::Error> {
    let start = Instant::now();
    let mut search = Search { problem, track, tuning, start, tried: 0, run_us: f64::INFINITY };
    let policies = candidates::policies(problem)?;
    let others = candidates::others(problem, &policies)?;
    let count = policies.len();
    let mut field = Vec::new();
    for (at, candidate) in policies.into_iter().chain(others).enumerate() {
        // Where each takes long, policies have to do.
        if at < count || search.used() < SHARE {
            field.push(search.enter(candidate)?);
            race(search.track, &mut field[at..], 1)?;
            search.run_us = search.run_us.min(field[at].median());
        }
    }
    search.race(&mut field, ROUNDS[0] - 1)?;
    sort(&mut field);
    let mut ranking: Vec<(String, f64)> = field.iter().map(|c| (c.name.clone(), c.median())).collect();
    let best_policy =
        |field: &[Contestant<_>]| field.iter().position(|c| Policy::FIXED.iter().any(|p| p.name() == c.name));
    let Some(at) = best_policy(&field) else { unreachable!("every policy is a candidate") };
    let reserve = (at >= FINALISTS).then(|| field.remove(at));
    field.truncate(FINALISTS);
    field.extend(reserve);
    search.race(&mut field, ROUNDS[1])?;
    sort(&mut field);
    for finalist in &field {
        ranking.iter_mut().filter(|(name, _)| *name == finalist.name).for_each(|(_, us)| *us = finalist.median());
    }
    ranking.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some(at) = best_policy(&field) else { unreachable!("the best policy is kept") };
    let policy = field.remove(at);
    let best = if at > 0 { field.swap_remove(0) } else { search.again(&policy)? };
    drop(field);

    let (best, kept) = search.improve(best)?;
    let mut last = vec![search.again(&best)?, search.again(&policy)?, best, policy];
    last.iter_mut().for_each(|contestant| contestant.samples.clear());
    search.race(&mut last, ROUNDS[2])?;
    let medians: Vec<f64> = last.iter().map(Contestant::median).collect();
    let drift = medians[0] / medians[2] - 1.;
    // Both builds of the best have to beat both of the policy.
    let holds = medians[0].max(medians[2]) < medians[1].min(medians[3]) * (1. - NOISE);
    let builds = if holds { [0, 2] } else { [1, 3] };
    let [one, other] = builds;
    let winner = last.swap_remove(if medians[one] <= medians[other] { one } else { other });
    let findings = Findings {
        us: winner.median(),
        origin: winner.name,
        ranking,
        tried: search.tried,
        kept: if holds { kept } else { 0 },
        drift,
        cached: false,
    };
    Ok(Winner { schedule: winner.schedule, runner: winner.runner, findings })
}

/// The policy's schedule where there is nothing to run on: searched for by simulating the device of the trace.
pub(crate) fn by_simulation(problem: &Problem) -> Result<Schedule> {
    let tuning = Tuning { budget: Duration::MAX, proposals: SIMULATED, cache: None, ..Default::default() };
    Ok(search(problem, &mut Simulation { problem, device: Device::of(&problem.trace.device) }, &tuning)?.schedule)
}

/// A device that is simulated: runs are exact.
struct Simulation<'a> {
    problem: &'a Problem<'a>,
    device: Device,
}

impl Track for Simulation<'_> {
    type Runner = f64;
    type Error = Error;

    fn runner(&mut self, schedule: &Schedule) -> Result<f64> {
        Ok(simulate(self.problem, schedule, &self.device).total_us)
    }

    fn run(&mut self, us: &f64) -> Result<f64> {
        Ok(*us)
    }
}

fn sort<R>(field: &mut [Contestant<R>]) {
    field.sort_by(|a, b| a.median().total_cmp(&b.median()));
}

struct Search<'a, T> {
    problem: &'a Problem<'a>,
    track: &'a mut T,
    tuning: &'a Tuning,
    start: Instant,
    tried: usize,
    /// Microseconds of the fastest contestant so far, as far as is known.
    run_us: f64,
}

impl<T: Track> Search<'_, T> {
    fn enter(&mut self, candidate: Candidate) -> Result<Contestant<T::Runner>, T::Error> {
        self.tried += 1;
        Contestant::new(candidate.name, candidate.schedule, self.track)
    }

    /// The same schedule, built once more.
    fn again(&mut self, contestant: &Contestant<T::Runner>) -> Result<Contestant<T::Runner>, T::Error> {
        Contestant::new(contestant.name.clone(), contestant.schedule.clone(), self.track)
    }

    /// Share of the budget's time that has passed.
    fn used(&self) -> f64 {
        self.start.elapsed().as_secs_f64() / self.tuning.budget.as_secs_f64().max(1e-9)
    }

    /// As many rounds as are asked for, or fewer where a run takes long, but one at least.
    fn race(&mut self, field: &mut [Contestant<T::Runner>], rounds: usize) -> Result<(), T::Error> {
        let round_us = self.run_us * field.len() as f64;
        let affordable = self.tuning.budget.as_secs_f64() * 1e6 * SHARE / round_us.max(1.);
        race(self.track, field, rounds.min(affordable as usize).max(1))
    }

    fn progress(&self, proposed: usize, best_us: f64) -> f64 {
        let share = self.used().max(proposed as f64 / self.tuning.proposals.max(1) as f64).min(1.);
        if let Some(progress) = &self.tuning.progress {
            progress(&Progress { share, tried: self.tried, best_us });
        }
        share
    }

    /// Changes the best schedule for as long as the budget lasts, and keeps what is faster; returns how often.
    fn improve(&mut self, mut best: Contestant<T::Runner>) -> Result<(Contestant<T::Runner>, usize), T::Error> {
        let mut random = fastrand::Rng::with_seed(self.tuning.seed);
        let (mut kept, mut proposed) = (0, 0);
        while self.tuning.proposals > proposed && self.progress(proposed, best.median()) < 1. {
            let mut field = Vec::new();
            for _ in 0..LITTER {
                proposed += 1;
                let schedule = neighbours::change(self.problem, &best.schedule, &mut random)?;
                if schedule != best.schedule {
                    let name = format!("{}, changed", best.name.trim_end_matches(", changed"));
                    field.push(self.enter(Candidate { name, schedule })?);
                }
            }
            best.samples.clear();
            field.push(best);
            self.race(&mut field, ROUNDS[0])?;
            best = field.swap_remove(field.len() - 1);
            let fastest = field.into_iter().min_by(|a, b| a.median().total_cmp(&b.median()));
            if let Some(rival) = fastest.filter(|rival| rival.median() < best.median() * (1. - NOISE)) {
                // Once more, on its own: the fastest of several looks faster than it is.
                let mut duel = [best, rival];
                duel.iter_mut().for_each(|contestant| contestant.samples.clear());
                self.race(&mut duel, ROUNDS[1])?;
                let [old, rival] = duel;
                let faster = rival.median() < old.median() * (1. - NOISE);
                kept += usize::from(faster);
                best = if faster { rival } else { old };
            }
        }
        self.progress(proposed, best.median());
        Ok((best, kept))
    }
}
