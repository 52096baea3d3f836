//! The stage `verify`: replays the examples and compares them with eager execution, bit for bit.

use candle::{Device, Tensor};

use super::build::Build;
use super::fuse::Fused;
use super::instantiate::Instance;
use crate::arguments::StateArguments;
use crate::backend::{Example, Program, Replay};
use crate::error::STRESSED;
use crate::timing::{self, Latency};
use crate::{verify, Error, Result};
use opara_plan::schedule::{BuiltIn, Scheduler};

/// An instance whose replays gave eager's bits, if they were compared.
pub(super) struct Verified {
    pub instance: Instance,
    /// Microseconds of the fastest replay seen.
    pub replay_us: f64,
}

/// Replays the examples and, after a mismatch, the sequential schedule.
pub(super) fn verify(mut instance: Instance, fused: &Fused, build: &mut Build) -> Result<Verified> {
    let (examples, device, options) = (&fused.examples, &build.device, build.options);
    let times = &mut build.times;
    let sequential = BuiltIn::Sequential.name();
    let replay_us = loop {
        let Instance { plan, replay, scheduler, .. } = &mut instance;
        if cfg!(debug_assertions) {
            times.time("check", || plan.prepared.check(&plan.schedule))?;
        }
        let trial = Trial { program: &*plan.program, examples, state: &options.state, device };
        match times.time("verify", || trial.try_out(&mut **replay, options.verify)) {
            Ok(us) => break us,
            Err(Error::Mismatch(mismatch)) if *scheduler != sequential => {
                let difference = mismatch.difference();
                tracing::warn!(%difference, %scheduler, "falling back to the sequential schedule");
                let plan = plan.with(BuiltIn::Sequential.schedule(&plan.prepared.problem())?);
                let replay = times.time("capture", || plan.program.clone().replay(plan.clone()))?;
                let reason = Some(format!("{difference}; fell back to the sequential schedule"));
                instance = Instance { plan, replay, scheduler: sequential.clone(), reason, findings: None };
            }
            Err(error) => return Err(error),
        }
    };
    let plan = &instance.plan;
    for seed in 0..options.stress {
        let stressed = plan.program.clone().stressed(plan.clone(), seed)?;
        let trial = Trial { program: &*plan.program, examples, state: &options.state, device };
        times.time("stress", || trial.compare(&*stressed))?;
    }
    Ok(Verified { instance, replay_us })
}

/// Microseconds that comparing variants may take beyond the verification. It buys short forwards several samples each;
/// long ones need none.
const TRIAL_US: f64 = 100_000.;

/// Examples on which replays are tried.
struct Trial<'a> {
    program: &'a dyn Program,
    examples: &'a [Example],
    /// The state among the examples' arguments.
    state: &'a StateArguments,
    device: &'a Device,
}

impl Trial<'_> {
    /// Replays the examples, compares them if `compare` is set, and chooses the variant with the lowest median time. Returns the
    /// time of its fastest replay in microseconds.
    ///
    /// Variants take turns over the examples: building costs few forwards.
    fn try_out(&self, replay: &mut dyn Replay, compare: bool) -> Result<f64> {
        let (examples, variants) = (self.examples, replay.variants());
        let mut samples = vec![Vec::new(); variants];
        // Every example, and every variant.
        for (i, example) in (0..examples.len().max(variants)).zip(examples.iter().cycle()) {
            replay.choose(i % variants);
            let (answers, us) = self.timed(replay, example)?;
            samples[i % variants].push(us);
            if compare {
                self.agree("replay", example, &answers)?;
            }
        }
        let mut left = if variants > 1 { TRIAL_US } else { 0. };
        for (i, example) in (0..variants).cycle().zip(examples.iter().cycle()) {
            left -= samples[i].last().copied().unwrap_or(0.);
            if left <= 0. {
                break;
            }
            replay.choose(i);
            samples[i].push(self.timed(replay, example)?.1);
        }
        let latencies: Vec<Latency> = samples.into_iter().map(Latency::of).collect();
        let best =
            (0..variants).min_by(|&a, &b| latencies[a].median_us.total_cmp(&latencies[b].median_us)).unwrap_or(0);
        replay.choose(best);
        Ok(latencies[best].min_us)
    }

    /// Replays the examples and compares with eager.
    fn compare(&self, replay: &dyn Replay) -> Result<()> {
        self.examples.iter().try_for_each(|example| {
            let (answers, _) = self.timed(replay, example)?;
            self.agree(STRESSED, example, &answers)
        })
    }

    /// Compares the answers of a call with eager execution: small outputs on the host; large ones, and a state, first on the device.
    fn agree(&self, mode: &'static str, example: &Example, answers: &[Tensor]) -> Result<()> {
        let outputs = example.outputs.len().saturating_sub(self.state.compared());
        let (expected, expected_state) = example.outputs.split_at(outputs);
        let (got, state) = answers.split_at(outputs.min(answers.len()));
        /// Below this, candle's kernels for it may take longer to be loaded than copies take.
        const LARGE: usize = 1 << 20;
        let bytes: usize = expected.iter().map(|output| output.elem_count() * output.dtype().size_in_bytes()).sum();
        match bytes < LARGE {
            true => verify::same_bits(mode, expected, got)?,
            false => verify::same_bits_by_device(mode, expected, got)?,
        }
        match verify::same_on_device(expected_state, state) {
            true => Ok(()),
            false => verify::same_bits(mode, &example.outputs, answers),
        }
    }

    /// Answers of a call in the state from before building, and the microseconds that it took.
    fn timed(&self, replay: &dyn Replay, example: &Example) -> Result<(Vec<Tensor>, f64)> {
        self.program.restore_state()?;
        let arguments = self.state.with_own_state(&example.inputs)?;
        let (outputs, us) = timing::timed(self.device, || replay.call(&arguments))?;
        Ok((self.state.answers(outputs, &arguments), us))
    }
}
