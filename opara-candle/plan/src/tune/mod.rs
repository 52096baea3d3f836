//! The tuned scheduler: searches for the fastest schedule by running candidates.
//!
//! The fastest schedule depends on properties of the device that no model captures. So the search benchmarks the
//! schedules of all schedulers, combinations of their streams and launch orders, limited numbers of streams, and
//! priorities for critical ops. From the best one it continues with small random mutations. Runs are interleaved, so
//! that a device that slows down affects all candidates. At the end the winner is built again and compared with the
//! best scheduler: a gain that does not repeat was noise.

mod benchmark;
mod cache;
mod candidates;
pub mod challengers;
mod neighbours;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::benchmark::{benchmark, Bench, Contestant};
pub use self::cache::Cache;

use self::candidates::Candidate;
use crate::schedule::{BuiltIn, Problem, Schedule, Scheduler};
use crate::{disk_cache, Result};

/// Runs of each contestant: in the first benchmark, among the finalists, and in the last comparison.
const ROUNDS: [usize; 3] = [9, 25, 51];

/// Contestants of the second benchmark.
const FINALISTS: usize = 6;

/// The share of the budget for benchmarking the initial candidates, and for each further benchmark.
const SHARE: f64 = 0.25;

/// Mutations that are benchmarked together.
const MUTATIONS_PER_ROUND: usize = 4;

/// The least gain that counts, as a share of the time.
pub(crate) const MIN_GAIN: f64 = 0.003;

/// Called with the progress of a search.
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Settings of the search for a tuned schedule.
#[derive(Clone)]
#[non_exhaustive]
pub struct Search {
    /// Time for benchmarks. The first benchmarks and the last comparison run in any case. Default: 2 s.
    pub budget: Duration,
    /// Maximum number of mutations to try. Default: 1000.
    pub proposals: usize,
    /// Seed of the mutations. The same seed proposes the same mutations, as long as the same ones win. Default: 0.
    pub seed: u64,
    /// Folder that stores plans between starts of the program; `None` stores none. Its size is bounded like that of the
    /// folder of compiled kernels. Default: `opara-candle` in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Called with the progress of the search.
    pub progress: Option<OnProgress>,
}

impl Default for Search {
    fn default() -> Self {
        Self { budget: Duration::from_secs(2), proposals: 1000, seed: 0, cache: disk_cache::folder(), progress: None }
    }
}

impl Search {
    /// Sets the time for benchmarks.
    pub fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }

    /// Sets the maximum number of mutations.
    pub fn proposals(self, proposals: usize) -> Self {
        Self { proposals, ..self }
    }

    /// Sets the seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the folder of stored plans, or none.
    pub fn cache(self, cache: Option<PathBuf>) -> Self {
        Self { cache, ..self }
    }

    /// Sets a function that is called with the progress.
    pub fn on_progress(self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }
}

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { budget, proposals, seed, cache, progress: _ } = self;
        f.debug_struct("Search")
            .field("budget", budget)
            .field("proposals", proposals)
            .field("seed", seed)
            .field("cache", cache)
            .finish_non_exhaustive()
    }
}

/// The progress of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Used share of the budget, from 0 to 1.
    pub share: f64,
    /// Number of schedules tried.
    pub tried: usize,
    /// Microseconds of the best schedule so far.
    pub best_us: f64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Findings {
    /// Description of the schedule.
    pub origin: String,
    /// Median of its runs in microseconds.
    pub us: f64,
    /// Medians in microseconds of all schedulers and combinations, fastest first.
    pub ranking: Vec<(String, f64)>,
    /// Number of schedules tried.
    pub tried: usize,
    /// Number of accepted mutations.
    pub accepted: usize,
    /// Relative slowdown of the winner's schedule when it was built again at the end: the variation between two builds
    /// of one schedule.
    pub drift: f64,
    /// Was the plan found in the cache, so that nothing was run?
    pub cached: bool,
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { origin, us, tried, accepted, drift, .. } = self;
        write!(f, "{origin}: {us:.1} us, ")?;
        match self.cached {
            true => f.write_str("from the plan cache"),
            false => write!(f, "{tried} schedules tried, {accepted} changes accepted, drift {:.1} %", 100. * drift),
        }
    }
}

/// The fastest schedule, ready to run.
pub struct Winner<R> {
    /// The schedule.
    pub schedule: Schedule,
    /// The schedule, ready to run.
    pub runner: R,
    /// The search's findings.
    pub findings: Findings,
}

/// Searches for the fastest schedule on a bench.
///
/// # Errors
/// An error of the bench.
pub fn search<T: Bench>(problem: &Problem, bench: &mut T, tuning: &Search) -> Result<Winner<T::Runner>, T::Error> {
    let start = Instant::now();
    let mut search = Hunt { problem, bench, tuning, start, tried: 0, run_us: f64::INFINITY };
    let schedulers = candidates::schedulers(problem)?;
    let others = candidates::others(problem, &schedulers)?;
    let count = schedulers.len();
    let mut contestants = Vec::new();
    for (at, candidate) in schedulers.into_iter().chain(others).enumerate() {
        // If a run takes long, only the schedulers are benchmarked.
        if at < count || search.used() < SHARE {
            contestants.push(search.enter(candidate)?);
            benchmark(search.bench, &mut contestants[at..], 1)?;
            search.run_us = search.run_us.min(contestants[at].median());
        }
    }
    search.benchmark(&mut contestants, ROUNDS[0] - 1)?;
    sort(&mut contestants);
    let mut ranking: Vec<(String, f64)> = contestants.iter().map(|c| (c.name.clone(), c.median())).collect();
    let best_scheduler = |contestants: &[Contestant<_>]| {
        contestants.iter().position(|c| BuiltIn::FIXED.iter().any(|p| p.name() == c.name))
    };
    let Some(at) = best_scheduler(&contestants) else { unreachable!("every scheduler is a candidate") };
    let reserve = (at >= FINALISTS).then(|| contestants.remove(at));
    contestants.truncate(FINALISTS);
    contestants.extend(reserve);
    search.benchmark(&mut contestants, ROUNDS[1])?;
    sort(&mut contestants);
    for finalist in &contestants {
        ranking.iter_mut().filter(|(name, _)| *name == finalist.name).for_each(|(_, us)| *us = finalist.median());
    }
    ranking.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some(at) = best_scheduler(&contestants) else { unreachable!("the best scheduler is kept") };
    let scheduler = contestants.remove(at);
    let best = if at > 0 { contestants.swap_remove(0) } else { search.rebuild(&scheduler)? };
    drop(contestants);

    let (best, accepted) = search.improve(best)?;
    let mut last = vec![search.rebuild(&best)?, search.rebuild(&scheduler)?, best, scheduler];
    last.iter_mut().for_each(|contestant| contestant.samples.clear());
    search.benchmark(&mut last, ROUNDS[2])?;
    let medians: Vec<f64> = last.iter().map(Contestant::median).collect();
    let drift = medians[0] / medians[2] - 1.;
    // Both builds of the best schedule must beat both builds of the scheduler's schedule.
    let holds = medians[0].max(medians[2]) < medians[1].min(medians[3]) * (1. - MIN_GAIN);
    let builds = if holds { [0, 2] } else { [1, 3] };
    let [one, other] = builds;
    let winner = last.swap_remove(if medians[one] <= medians[other] { one } else { other });
    let findings = Findings {
        us: winner.median(),
        origin: winner.name,
        ranking,
        tried: search.tried,
        accepted: if holds { accepted } else { 0 },
        drift,
        cached: false,
    };
    Ok(Winner { schedule: winner.schedule, runner: winner.runner, findings })
}

fn sort<R>(contestants: &mut [Contestant<R>]) {
    contestants.sort_by(|a, b| a.median().total_cmp(&b.median()));
}

struct Hunt<'a, T> {
    problem: &'a Problem<'a>,
    bench: &'a mut T,
    tuning: &'a Search,
    start: Instant,
    tried: usize,
    /// Microseconds of the fastest contestant so far, infinite at first.
    run_us: f64,
}

impl<T: Bench> Hunt<'_, T> {
    fn enter(&mut self, candidate: Candidate) -> Result<Contestant<T::Runner>, T::Error> {
        self.tried += 1;
        Contestant::new(candidate.name, candidate.schedule, self.bench)
    }

    /// Builds the same schedule again.
    fn rebuild(&mut self, contestant: &Contestant<T::Runner>) -> Result<Contestant<T::Runner>, T::Error> {
        Contestant::new(contestant.name.clone(), contestant.schedule.clone(), self.bench)
    }

    /// Used share of the time budget.
    fn used(&self) -> f64 {
        self.start.elapsed().as_secs_f64() / self.tuning.budget.as_secs_f64().max(1e-9)
    }

    /// Benchmarks for that many rounds, or fewer if a run takes long, but at least one.
    fn benchmark(&mut self, contestants: &mut [Contestant<T::Runner>], rounds: usize) -> Result<(), T::Error> {
        let round_us = self.run_us * contestants.len() as f64;
        let affordable = self.tuning.budget.as_secs_f64() * 1e6 * SHARE / round_us.max(1.);
        benchmark(self.bench, contestants, rounds.min(affordable as usize).max(1))
    }

    fn progress(&self, proposed: usize, best_us: f64) -> f64 {
        let share = self.used().max(proposed as f64 / self.tuning.proposals.max(1) as f64).min(1.);
        if let Some(progress) = &self.tuning.progress {
            progress(&Progress { share, tried: self.tried, best_us });
        }
        share
    }

    /// Mutates the best schedule until the budget is used up, and accepts a mutation that is faster. Returns the number
    /// of accepted mutations.
    fn improve(&mut self, mut best: Contestant<T::Runner>) -> Result<(Contestant<T::Runner>, usize), T::Error> {
        let mut random = fastrand::Rng::with_seed(self.tuning.seed);
        let (mut accepted, mut proposed) = (0, 0);
        while self.tuning.proposals > proposed && self.progress(proposed, best.median()) < 1. {
            let mut contestants = Vec::new();
            for _ in 0..MUTATIONS_PER_ROUND {
                proposed += 1;
                let schedule = neighbours::mutate(self.problem, &best.schedule, &mut random)?;
                if schedule != best.schedule {
                    let name = format!("{}, changed", best.name.trim_end_matches(", changed"));
                    contestants.push(self.enter(Candidate { name, schedule })?);
                }
            }
            best.samples.clear();
            contestants.push(best);
            self.benchmark(&mut contestants, ROUNDS[0])?;
            best = contestants.swap_remove(contestants.len() - 1);
            let fastest = contestants.into_iter().min_by(|a, b| a.median().total_cmp(&b.median()));
            if let Some(challenger) = fastest.filter(|challenger| challenger.median() < best.median() * (1. - MIN_GAIN))
            {
                // Compare again with the best alone: the fastest of several looks faster than it is.
                let mut duel = [best, challenger];
                duel.iter_mut().for_each(|contestant| contestant.samples.clear());
                self.benchmark(&mut duel, ROUNDS[1])?;
                let [old, challenger] = duel;
                let faster = challenger.median() < old.median() * (1. - MIN_GAIN);
                accepted += usize::from(faster);
                best = if faster { challenger } else { old };
            }
        }
        self.progress(proposed, best.median());
        Ok((best, accepted))
    }
}
