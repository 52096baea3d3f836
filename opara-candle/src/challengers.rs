//! Benchmarks the chosen schedule against challengers on the device, and keeps the fastest.

use crate::backend::Replay;
use crate::measure::Replays;
use crate::timing::{keeps_busy, wall_us, Latency};
use crate::{Error, Result};
use opara_plan::schedule::{Problem, Schedule};
use opara_plan::tune::challengers::challengers;
use opara_plan::tune::Contestant;

/// The share of the time by which a challenger must be faster. Larger than in the search, since each runs only a few times.
pub(crate) const REQUIRED_GAIN: f64 = 0.01;

/// The largest speed-up that another schedule is assumed to give. A plan that has to be faster than another one by more than that is not
/// benchmarked.
const LARGEST_GAIN_OF_SCHEDULES: f64 = 1.5;

/// Replays of `us` microseconds that a comparison takes the median of. Long ones vary less, and a build should not take much longer for
/// them.
pub(crate) fn rounds(us: f64) -> usize {
    const MOST: usize = 9;
    const FEWEST: usize = 3;
    /// Microseconds that all replays of one plan may take.
    const IN_ALL_US: f64 = 15_000.;
    ((IN_ALL_US / us.max(1.)) as usize).clamp(FEWEST, MOST)
}

/// Microseconds after which no further challenger is tried.
const TRIED_US: f64 = 100_000.;

/// A replay that takes longer is compared with each challenger once: it differs less from run to run.
const LONG_US: f64 = 5_000.;

/// A replay that takes longer, and keeps the device busy, is not compared: the order of such kernels matters little, and each comparison
/// takes a few replays.
const LONGEST_US: f64 = 40_000.;

/// The fastest challenger, if it beats the plan's own schedule by more than the noise. The base of the bench replays the
/// plan's own schedule. A plan that has to be faster than `rival_us` microseconds has none if no schedule makes it so.
pub(crate) fn faster(
    bench: &mut Replays,
    problem: &Problem,
    scheduler: &str,
    rival_us: Option<f64>,
) -> Result<Option<Contestant<Box<dyn Replay>>>> {
    let challengers = challengers(&bench.plan.schedule, problem, scheduler)?;
    if challengers.is_empty() {
        return Ok(None);
    }
    let mut us = bench.lap(bench.base, 0);
    if rival_us.is_some() {
        // The first replay is slower, which counts if another plan is as fast.
        us = us.and_then(|_| bench.lap(bench.base, 0));
    }
    let is_longest = |us: f64| us > LONGEST_US && keeps_busy(us, problem.graph.len());
    let is_lost = |us: f64| rival_us.is_some_and(|rival_us| us > LARGEST_GAIN_OF_SCHEDULES * rival_us);
    let Some(mut fastest_us) = unless_lost(us, scheduler)?.filter(|&us| !is_longest(us) && !is_lost(us)) else {
        return Ok(None);
    };
    let (mut best, mut spent): (Option<Contestant<Box<dyn Replay>>>, f64) = (None, 0.);
    // One after the other: the driver builds the next graph in the memory of the discarded ones.
    for (name, schedule) in challengers {
        if spent > TRIED_US {
            break;
        }
        let fastest = best.as_ref().map_or(bench.base, |best| &*best.runner);
        let (measured, took_us) = wall_us(|| against(bench, (fastest, fastest_us), name.clone(), schedule));
        spent += took_us;
        let Some((challenger, us)) = unless_lost(measured, &name)? else { continue };
        fastest_us = us;
        if challenger.median() < us * (1. - REQUIRED_GAIN) {
            (fastest_us, best) = (challenger.median(), Some(challenger));
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

/// Runs a schedule and the fastest one so far alternately, unless the fastest one's time is known and the schedule is behind; returns the
/// contestant, and the median time of the fastest.
fn against(
    bench: &mut Replays,
    (fastest, fastest_us): (&dyn Replay, f64),
    name: String,
    schedule: Schedule,
) -> Result<(Contestant<Box<dyn Replay>>, f64)> {
    let mut challenger = Contestant::new(name, schedule, bench)?;
    // The first replays are slower; long ones by so little that a challenger which is not faster here stays behind.
    let first = bench.lap(&*challenger.runner, 0)?;
    if fastest_us > LONG_US && first > fastest_us * (1. - REQUIRED_GAIN) {
        challenger.samples.push(first);
        return Ok((challenger, fastest_us));
    }
    let rounds = if fastest_us > LONG_US { 1 } else { rounds(fastest_us) };
    let mut times = Vec::with_capacity(rounds);
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
