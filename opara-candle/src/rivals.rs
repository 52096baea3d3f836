//! Schedules that a plan's own has to beat on the device before it is kept.

use crate::backend::Replay;
use crate::measure::Replays;
use crate::schedule::{Problem, Schedule};
use crate::timing::Latency;
use crate::tune::challengers::challengers;
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
    for (name, schedule) in challengers(&track.plan.schedule, problem, policy)? {
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
