//! Benchmarks the rewritten plan against the exact one, each fused and scheduled as it will be replayed.

use std::sync::Arc;

use super::build::{Build, Halt};
use super::fuse::Fused;
use super::outcome::why_not_rewritten;
use super::rewrite::{Exact, Rewritten};
use super::verify::Verified;
use crate::challengers::rounds;
use crate::measure::Replays;
use crate::timing::Latency;
use crate::trace::{Element, Trace, View};
use crate::{cuda, Error, Result};

/// A plan that is ready to be replayed.
pub(super) struct Candidate {
    pub verified: Verified,
    pub fused: Fused,
}

/// Microseconds of a launch below which the time between launches counts: fusion and streams may then gain more than elsewhere.
const SHORT_US: f64 = 10.;

/// Speed-up over candle's launches one after the other, which take so long, from which the exact plan is not benchmarked. No pass of long
/// launches that was measured beyond it, 33 in f32 and 27 in f16, was faster unrewritten (docs/notes/measurements.md); one of short ones
/// was, a small transformer of many element-wise launches.
fn sufficient_gain(trace: &Trace, sequential_us: f64) -> f64 {
    if sequential_us < SHORT_US * trace.ops.len() as f64 {
        return 8.;
    }
    let has_16_bits = |view: &View| matches!(view.element, Element::F16 | Element::Bf16);
    let mut meanings = trace.ops.iter().filter_map(|op| op.meaning.as_deref());
    match meanings.any(|meaning| meaning.writes.as_ref().is_some_and(has_16_bits)) {
        true => 4.,
        false => 2.5,
    }
}

/// The rewritten pass, or the exact one if the rewritten one is not faster, and the median microseconds of a replay of each. `finish`
/// makes the exact one ready; that is left out if it is not expected to be the faster one, and if nothing is to be benchmarked.
///
/// # Errors
/// A lost device, or freed memory.
pub(super) fn contest(
    rewritten: Candidate,
    exact: Option<Exact>,
    arena: &Arc<cuda::Arena>,
    build: &mut Build,
    finish: impl FnOnce(Rewritten, &mut Build) -> Result<Candidate, Halt>,
) -> Result<(Candidate, Option<[f64; 2]>), Halt> {
    let is_timed = |exact: &Exact| {
        let gain = sufficient_gain(&exact.pass.trace, exact.sequential_us);
        build.options.benchmark_challengers && is_open(rewritten.verified.replay_us, exact.sequential_us, gain)
    };
    let Some(Exact { pass, .. }) = exact.filter(is_timed) else { return Ok((rewritten, None)) };
    let before = arena.bytes().max(arena_bytes(&rewritten));
    let outcome = build.on_own_settings("exact plan", rewritten.verified.replay_us, |build| -> Result<_, Halt> {
        let exact = finish(*pass, build)?;
        let us = times(&rewritten, &exact, build)?;
        Ok((exact, us))
    });
    let mut times = None;
    let winner = match outcome {
        Ok((exact, us)) => {
            times = Some(us);
            match why_not_rewritten(us) {
                None => {
                    tracing::debug!(?us, "the rewritten pass is faster");
                    rewritten
                }
                Some(note) => {
                    drop(rewritten);
                    Candidate { fused: exact.fused.noting(note), ..exact }
                }
            }
        }
        Err(Halt::Failed(error @ (Error::DeviceLost { .. } | Error::MemoryFreed))) => return Err(error.into()),
        Err(Halt::Stopped(stage)) => return Err(Halt::Stopped(stage)),
        // The device may lack the memory for both.
        Err(Halt::Failed(error)) => {
            let note = format!("the rewritten launches were not timed against candle's: {error}");
            Candidate { fused: rewritten.fused.noting(note), ..rewritten }
        }
    };
    // The loser is gone, and with it what it needed of the arena.
    if arena.limit_to(before.max(arena_bytes(&winner)), &build.device)? {
        rebuild(&winner, build)?;
    }
    Ok((winner, times))
}

/// Bytes that a pass needs of the arena.
fn arena_bytes(of: &Candidate) -> u64 {
    of.verified.instance.plan.prepared.layouts[0].bytes
}

/// May the exact pass be the faster one, if this gain over its launches one after the other is sufficient?
fn is_open(rewritten_us: f64, sequential_us: f64, gain: f64) -> bool {
    rewritten_us * gain > sequential_us
}

/// Median microseconds of a replay of each; the two take turns.
fn times(rewritten: &Candidate, exact: &Candidate, build: &Build) -> Result<[f64; 2]> {
    let mut samples = [Vec::new(), Vec::new()];
    let bench = bench(rewritten, build)?;
    for round in 0..rounds(rewritten.verified.replay_us) {
        for (of, samples) in [rewritten, exact].into_iter().zip(&mut samples) {
            samples.push(bench.lap(&*of.verified.instance.replay, round)?);
        }
    }
    Ok(samples.map(|samples| Latency::of(samples).median_us))
}

/// Replays of the examples.
fn bench<'a>(of: &'a Candidate, build: &'a Build) -> Result<Replays<'a>> {
    let inputs = of.fused.examples.iter().map(|example| &example.inputs[..]).collect();
    let instance = &of.verified.instance;
    Replays::new(&*instance.replay, &instance.plan, inputs, &build.options.state, &build.device)
}

/// Builds the graph again that was built for another arena, so that the first call need not.
fn rebuild(of: &Candidate, build: &Build) -> Result<()> {
    bench(of, build)?.lap(&*of.verified.instance.replay, 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Function, Meaning, Op, Work};

    #[test]
    fn a_sufficient_gain_builds_no_exact_pass() {
        assert!(is_open(526., 620., 4.));
        assert!(is_open(200., 799., 4.));
        assert!(!is_open(200., 1110., 4.));
    }

    #[test]
    fn in_16_bits_more_is_needed() {
        let trace = |element| {
            let view = View { buffer: 0, element, first: 0, dims: Vec::new() };
            let meaning = Meaning { function: Function::Copy, reads: Vec::new(), writes: Some(view) };
            let op = |meaning| Op {
                name: "op".into(),
                label: String::new(),
                work: Work::Memset(0),
                accesses: Vec::new(),
                nanos: None,
                meaning,
            };
            Trace { ops: vec![op(None), op(Some(Box::new(meaning)))], ..Trace::default() }
        };
        let gains = [Element::F32, Element::F16, Element::Bf16].map(|element| sufficient_gain(&trace(element), 30.));
        assert_eq!(gains, [2.5, 4., 4.]);
        assert_eq!(sufficient_gain(&trace(Element::F32), 15.), 8., "launches of less than 10 us");
    }
}
