//! Fallbacks for a stage that fails: a build without rewritten or fused launches, or a plan that calls the module.

use candle::{Device, Tensor};

use super::build::{Build, Halt};
use super::plan::Plan;
use crate::backend::{Fusing, Rewriting};
use crate::options::{OnStateful, OnUncapturable, Options};
use crate::report::Report;
use crate::{cuda, gradient, Error, Result};

/// Runs the pipeline. If rewritten or fused launches give other bits, runs it again without rewriting, then without
/// fusion. Before that, what is kept of rewriting is decided anew.
pub(super) fn build(
    inputs: &[Tensor],
    options: &Options,
    mut stages: impl FnMut((Option<Rewriting>, Option<Fusing>), &mut Build) -> Result<Plan, Halt>,
) -> Result<Plan> {
    let mut build = Build::new(inputs, options);
    let device = name(&build.device);
    if options.on_stateful == OnStateful::Eager {
        let reason = Some("it is declared to keep state from call to call".into());
        return Ok(Plan::eager(Report { reason, device, ..blank(options) }));
    }
    let (mut rewriting, mut fusing, mut reason) = (options.rewriting(), options.fusing(), None);
    let built = loop {
        let is_fused = fusing.is_some();
        let built = stages((rewriting.take(), fusing.take()), &mut build);
        let Err(Halt::Failed(Error::Mismatch(mismatch))) = &built else { break built };
        let difference = mismatch.difference();
        if build.is_rewritten && build.is_kept {
            tracing::warn!(%difference, "deciding anew which launches are rewritten");
            rewriting = options.rewriting().map(|rewriting| Rewriting { is_anew: true, ..rewriting });
            fusing = options.fusing().filter(|_| is_fused);
        } else if build.is_rewritten {
            tracing::warn!(%difference, "building without rewritten launches");
            fusing = options.fusing().filter(|_| is_fused);
            reason.get_or_insert(format!("{difference}; launches are not rewritten"));
        } else if build.replaced > 0 {
            tracing::warn!(%difference, "building without fused launches");
            reason.get_or_insert(format!("{difference}; launches are not fused"));
        } else {
            break built;
        }
    };
    let built = built.map(|mut plan| {
        plan.report.reason = plan.report.reason.or(reason);
        plan
    });
    let mut plan = match built {
        Ok(plan) => plan,
        Err(Halt::Stopped(stage)) => {
            let reason = format!("building ended after the stage `{stage}`, as `Builder::stop_after` asks");
            let [recorded, trace] = build.traces;
            let report = Report { reason: Some(reason), ..blank(options) };
            Plan { recorded, trace, ..Plan::eager(report) }
        }
        // The executor builds again.
        Err(Halt::Failed(error @ Error::MemoryFreed)) => return Err(error),
        Err(Halt::Failed(error)) if runs_eagerly(&error, build.has_answered, options) => {
            tracing::warn!(reason = %error, "calls of these shapes run eagerly");
            Plan::eager(Report { reason: Some(error.to_string()), ..blank(options) })
        }
        Err(Halt::Failed(error)) => return Err(error),
    };
    if plan.replay.is_some() && build.is_tracked {
        plan.variable = Some(gradient::own_variable(&build.device)?);
    }
    plan.report.device = device;
    plan.report.build_ms = build.times.0;
    Ok(plan)
}

/// A plan that calls the module for this reason.
pub(super) fn eager(reason: &Error, inputs: &[Tensor], options: &Options) -> Plan {
    tracing::warn!(%reason, "calls of these shapes run eagerly");
    let device = inputs.first().map_or(Device::Cpu, |t| t.device().clone());
    Plan::eager(Report { device: name(&device), reason: Some(reason.to_string()), ..blank(options) })
}

/// The device's name in a report.
fn name(device: &Device) -> String {
    if device.is_cuda() {
        cuda::device_name(device)
    } else {
        "cpu".into()
    }
}

/// Does the module run eagerly after this error? If the memory for a replay is missing, it does only if the device had enough for
/// a forward pass.
fn runs_eagerly(error: &Error, has_answered: bool, options: &Options) -> bool {
    let is_sound = error.is_uncapturable() || has_answered && matches!(error, Error::OutOfMemory { .. });
    is_sound && options.on_uncapturable == OnUncapturable::Eager
}

fn blank(options: &Options) -> Report {
    Report { scheduler: options.scheduler.name(), ..Report::default() }
}
