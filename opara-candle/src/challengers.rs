//! Benchmarks the chosen schedule against challengers on the device, and keeps the fastest.

use crate::backend::Replay;
use crate::measure::Replays;
use crate::schedule::{Problem, Schedule};
use crate::timing::{wall_us, Latency};
use crate::tune::challengers::challengers;
use crate::tune::Contestant;
use crate::{Error, Result};

/// The share of the time by which a challenger must be faster. Larger than in the search, since each runs only a few times.
pub(crate) const REQUIRED_GAIN: f64 = 0.01;

/// So many times as fast another schedule makes a plan at most: an assumption, which saves the time of measuring those of a plan that
/// has to be faster than another plan.
const LARGEST_GAIN_OF_SCHEDULES: f64 = 1.5;

/// How often replays that take so long are run to be compared, of which the median counts: fewer times if they are long, since those
/// differ less from run to run, and a build should not take much longer for them.
pub(crate) fn rounds(us: f64) -> usize {
    const MOST: usize = 9;
    const FEWEST: usize = 3;
    /// What all runs of one of them may take.
    const IN_ALL_US: f64 = 15_000.;
    ((IN_ALL_US / us.max(1.)) as usize).clamp(FEWEST, MOST)
}

/// After so many microseconds no further challenger is tried.
const TRIED_US: f64 = 150_000.;

/// A replay that takes longer is compared once with each challenger, after one that warms up.
const LONG_US: f64 = 5_000.;

/// The fastest challenger, if it beats the plan's own schedule by more than the noise. The base of the bench replays the
/// plan's own schedule. A plan that has to be faster than `rival_us` microseconds has none if no schedule makes it so.
pub(crate) fn faster(
    bench: &mut Replays,
    problem: &Problem,
    policy: &str,
    rival_us: Option<f64>,
) -> Result<Option<Contestant<Box<dyn Replay>>>> {
    if let Some(rival_us) = rival_us {
        // The first replay is slower.
        let us = bench.lap(bench.base, 0).and_then(|_| bench.lap(bench.base, 0));
        if unless_lost(us, policy)?.is_none_or(|us| us > LARGEST_GAIN_OF_SCHEDULES * rival_us) {
            return Ok(None);
        }
    }
    let (mut best, mut spent): (Option<Contestant<Box<dyn Replay>>>, f64) = (None, 0.);
    // One after the other: the driver builds the next graph in the memory of the discarded ones.
    for (name, schedule) in challengers(&bench.plan.schedule, problem, policy)? {
        if spent > TRIED_US {
            break;
        }
        let fastest = best.as_ref().map_or(bench.base, |best| &*best.runner);
        let (measured, us) = wall_us(|| against(bench, fastest, name.clone(), schedule));
        let measured = unless_lost(measured, &name)?;
        spent += us;
        let faster = measured.filter(|(challenger, best_us)| challenger.median() < best_us * (1. - REQUIRED_GAIN));
        if let Some((challenger, _)) = faster {
            best = Some(challenger);
        }
    }
    Ok(best)
}

/// The result of measuring a schedule. `None`, with a warning, if that failed: the device may lack the memory for it, and the plan's own
/// schedule still runs.
///
/// # Errors
/// A lost device.
fn unless_lost<T>(measured: Result<T>, schedule: &str) -> Result<Option<T>> {
    match measured {
        Ok(measured) => Ok(Some(measured)),
        Err(lost @ Error::DeviceLost { .. }) => Err(lost),
        Err(error) => {
            tracing::warn!(%error, schedule, "a schedule was not benchmarked");
            Ok(None)
        }
    }
}

/// Runs a schedule and the fastest one so far alternately; returns the contestant, and the median time of the fastest.
fn against(
    bench: &mut Replays,
    fastest: &dyn Replay,
    name: String,
    schedule: Schedule,
) -> Result<(Contestant<Box<dyn Replay>>, f64)> {
    let mut challenger = Contestant::new(name, schedule, bench)?;
    // The first replays are slower; of long ones by so little that a challenger which is not faster here stays behind.
    let first = bench.lap(&*challenger.runner, 0)?;
    let us = bench.lap(fastest, 0)?;
    let (mut times, rounds) = match us > LONG_US {
        true if first > us => {
            challenger.samples.push(first);
            return Ok((challenger, us));
        }
        true => (Vec::new(), 1),
        false => (Vec::new(), rounds(us)),
    };
    for set in 0..rounds {
        times.push(bench.lap(fastest, set)?);
        challenger.samples.push(bench.lap(&*challenger.runner, set)?);
    }
    Ok((challenger, Latency::of(times).median_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_replays_run_fewer_times() {
        assert_eq!([0., 100., 1_700., 3_000., 4_600., 1e6].map(rounds), [9, 9, 8, 5, 3, 3]);
    }
}
