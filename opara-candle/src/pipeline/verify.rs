//! The stage `verify`: replays the examples and compares them with eager execution, bit for bit.

use candle::{Device, Tensor};

use super::build::Build;
use super::fuse::Fused;
use super::instantiate::Instance;
use crate::backend::{Example, Program, Replay};
use crate::error::{difference, STRESSED};
use crate::schedule::{Policy, Scheduler};
use crate::timing::{self, Latency};
use crate::{verify, Error, Result};

/// An instance whose replays gave eager's bits, if they were compared.
pub(super) struct Verified {
    pub instance: Instance,
    /// Microseconds of the fastest replay seen.
    pub replay_us: f64,
}

/// Replays the examples; on a mismatch once more with the sequential schedule. Afterwards the module's state on the device
/// is what it was before building.
pub(super) fn verify(mut instance: Instance, fused: &Fused, build: &mut Build) -> Result<Verified> {
    let (examples, device, options) = (&fused.examples, &build.device, build.options);
    let times = &mut build.times;
    let sequential = Policy::Sequential.name();
    let replay_us = loop {
        let Instance { plan, replay, policy, .. } = &mut instance;
        if cfg!(debug_assertions) {
            times.time("check", || plan.prepared.check(&plan.schedule))?;
        }
        match times.time("verify", || try_out(&mut **replay, &*plan.program, examples, options.verify, device)) {
            Ok(us) => break us,
            Err(error @ Error::Mismatch { .. }) if *policy != sequential => {
                let difference = difference(&error);
                tracing::warn!(%difference, %policy, "falling back to the sequential schedule");
                let plan = plan.with(Policy::Sequential.schedule(&plan.prepared.problem())?);
                let replay = times.time("capture", || plan.program.clone().replay(plan.clone()))?;
                let reason = Some(format!("{difference}; fell back to the sequential schedule"));
                instance = Instance { plan, replay, policy: sequential.clone(), reason, findings: None };
            }
            Err(error) => return Err(error),
        }
    };
    let plan = &instance.plan;
    for seed in 0..options.stress {
        let stressed = plan.program.clone().stressed(plan.clone(), seed)?;
        times.time("stress", || compare(&*stressed, &*plan.program, examples, device))?;
    }
    plan.program.end_of_building()?;
    Ok(Verified { instance, replay_us })
}

/// Microseconds that comparing variants may take beyond the verification. It buys short forwards several samples each;
/// long ones need none.
const TRIAL_US: f64 = 100_000.;

/// Replays the examples, compares where asked to, and keeps the variant with the lower median. Returns the time of its
/// fastest replay in microseconds.
///
/// Variants alternate over the examples, so that building costs few forward passes.
fn try_out(
    replay: &mut dyn Replay,
    program: &dyn Program,
    examples: &[Example],
    compare: bool,
    device: &Device,
) -> Result<f64> {
    let variants = replay.variants();
    let mut samples = vec![Vec::new(); variants];
    // Every example, and every variant.
    for (i, example) in (0..examples.len().max(variants)).zip(examples.iter().cycle()) {
        replay.choose(i % variants);
        let (outputs, us) = timed(replay, program, example, device)?;
        samples[i % variants].push(us);
        if compare {
            verify::same_bits("replay", &example.outputs, &outputs)?;
        }
    }
    let mut left = if variants > 1 { TRIAL_US } else { 0. };
    for (i, example) in (0..variants).cycle().zip(examples.iter().cycle()) {
        left -= samples[i].last().copied().unwrap_or(0.);
        if left <= 0. {
            break;
        }
        replay.choose(i);
        samples[i].push(timed(replay, program, example, device)?.1);
    }
    let latencies: Vec<Latency> = samples.into_iter().map(Latency::of).collect();
    let best = (0..variants).min_by(|&a, &b| latencies[a].median_us.total_cmp(&latencies[b].median_us)).unwrap_or(0);
    replay.choose(best);
    Ok(latencies[best].min_us)
}

/// Replays the examples and compares with eager.
fn compare(replay: &dyn Replay, program: &dyn Program, examples: &[Example], device: &Device) -> Result<()> {
    examples.iter().try_for_each(|example| {
        let (outputs, _) = timed(replay, program, example, device)?;
        verify::same_bits(STRESSED, &example.outputs, &outputs)
    })
}

/// Outputs of a call in the module's state from before building, and the microseconds that it took.
fn timed(replay: &dyn Replay, program: &dyn Program, example: &Example, device: &Device) -> Result<(Vec<Tensor>, f64)> {
    program.restore_state()?;
    timing::timed(device, || replay.call(&example.inputs))
}
