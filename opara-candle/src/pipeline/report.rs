//! The report of a plan that replays.

use opara_plan::rewrite::matched;
use opara_plan::rewrite::rules::Applied;

use super::build::Build;
use super::fuse::Fused;
use super::verify::Verified;
use crate::examples::unvaried_inputs;
use crate::options::Numerics;
use crate::report::{Counts, Match, Report};
use crate::trace::Trace;
use crate::Result;
use opara_plan::prepared::Prepared;

/// Collects the numbers of all stages.
///
/// # Errors
/// Comparing the examples' inputs fails.
pub(super) fn report(verified: &Verified, fused: &Fused, build: &Build) -> Result<Report> {
    let instance = &verified.instance;
    let (recorded, examples) = (fused.recorded.ops.len(), &fused.examples);
    let Prepared { ops, graph, layouts: [tensors, workspaces], .. } = &*instance.plan.prepared;
    let schedule = &instance.plan.schedule;
    let placed = || ops.trace.buffers.iter().enumerate().filter(|(id, _)| tensors.offset(*id).is_some());
    let is_verified = build.options.verify;
    let is_exact = build.device.is_cuda() && build.options.numerics == Numerics::Exact;
    let counts = Counts {
        ops: recorded,
        fused: fused.unfused - fused.trace.ops.len(),
        folded: fused.trace.ops.len() - ops.per_call.len(),
        edges: graph.hazards(),
        edges_reduced: graph.edges(),
        width: graph.width(),
        depth: graph.depth(),
        streams: schedule.streams(),
        waits: schedule.wait_count(),
        buffers: placed().count(),
        buffer_bytes: placed().map(|(_, b)| b.bytes).sum(),
        arena_bytes: tensors.bytes,
        workspace_bytes: workspaces.bytes,
        constant_bytes: ops.constant_bytes(),
    };
    Ok(Report {
        mode: instance.replay.mode(),
        scheduler: instance.scheduler.clone(),
        reason: instance.reason.clone(),
        notes: fused.notes.clone(),
        search: instance.findings.clone(),
        rewrites: fused.rewrites.clone(),
        matches: if is_exact { matches(&fused.recorded) } else { Vec::new() },
        rewriting_cached: build.is_kept,
        counts,
        verified: is_verified,
        verified_inputs: if is_verified { examples.len() } else { 0 },
        unvaried_inputs: if is_verified { unvaried_inputs(examples, &build.options.state)? } else { Vec::new() },
        replay_us: verified.replay_us,
        eager_us: examples.iter().map(|e| e.eager_us).fold(f64::INFINITY, f64::min),
        ..Report::default()
    })
}

/// The rules that other numerics would apply.
fn matches(recorded: &Trace) -> Vec<Match> {
    let found = matched(recorded).into_iter();
    found.map(|(rule, Applied { times, saved })| Match { rule, times, saved }).collect()
}
