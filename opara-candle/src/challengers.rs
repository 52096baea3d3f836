//! Benchmarks the chosen schedule against challengers on the device, and keeps the fastest.

use crate::backend::Replay;
use crate::measure::Replays;
use crate::schedule::{Problem, Schedule};
use crate::timing::Latency;
use crate::tune::challengers::challengers;
use crate::tune::Contestant;
use crate::{Error, Result};

/// The share of the time by which a challenger must be faster. Larger than in the search, since each runs only nine times.
pub(crate) const REQUIRED_GAIN: f64 = 0.01;

/// Runs of each, of which the median counts.
pub(crate) const ROUNDS: usize = 9;

/// The fastest challenger, if it beats the plan's own schedule by more than the noise. The base of the bench replays the
/// plan's own schedule.
pub(crate) fn faster(
    bench: &mut Replays,
    problem: &Problem,
    policy: &str,
) -> Result<Option<Contestant<Box<dyn Replay>>>> {
    let mut best: Option<Contestant<Box<dyn Replay>>> = None;
    // One after the other: the driver builds the next graph in the memory of the discarded ones.
    for (name, schedule) in challengers(&bench.plan.schedule, problem, policy)? {
        let fastest = best.as_ref().map_or(bench.base, |best| &*best.runner);
        match against(bench, fastest, name.clone(), schedule) {
            Ok((challenger, best_us)) if challenger.median() < best_us * (1. - REQUIRED_GAIN) => {
                best = Some(challenger)
            }
            Ok(_) => {}
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            // The device may lack the memory for it; the plan's own schedule still runs.
            Err(error) => tracing::warn!(%error, challenger = name, "a schedule was not benchmarked"),
        }
    }
    Ok(best)
}

/// Runs a schedule and the fastest one so far alternately; returns the contestant, and the median time of the fastest.
fn against(
    bench: &mut Replays,
    fastest: &dyn Replay,
    name: String,
    schedule: Schedule,
) -> Result<(Contestant<Box<dyn Replay>>, f64)> {
    let mut challenger = Contestant::new(name, schedule, bench)?;
    let mut times = Vec::new();
    for set in 0..ROUNDS {
        times.push(bench.lap(fastest, set)?);
        challenger.samples.push(bench.lap(&*challenger.runner, set)?);
    }
    Ok((challenger, Latency::of(times).median_us))
}
