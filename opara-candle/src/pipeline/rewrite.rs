//! The stage `rewrite`: replaces recorded launches by other operators.

use std::sync::Arc;

use super::build::Build;
use super::outcome::{why_not_rewritten, CachedDecisions, UnstoredDecisions};
use crate::backend::{Example, Program, Recorded, Recording, Rewriting, RewrittenProgram};
use crate::cuda::CompilerAhead;
use crate::report::Rewrite;
use crate::trace::Trace;
use crate::Result;

/// A recorded pass, rewritten.
pub(super) struct Rewritten {
    /// The launches as the module made them.
    pub recorded: Arc<Trace>,
    /// The trace after rewriting; equal to `recorded` if nothing is rewritten.
    pub trace: Arc<Trace>,
    pub program: Box<dyn Program>,
    /// Examples with the outputs that replays are compared with.
    pub examples: Vec<Example>,
    /// The result of each rule.
    pub rewrites: Vec<Rewrite>,
    /// Missed speed-ups, and their reasons.
    pub notes: Vec<String>,
    /// Decisions for the disk cache, if there are any.
    pub outcome: Option<UnstoredDecisions>,
    /// The pass without rewriting, if something is rewritten and it is open whether that is faster.
    pub exact: Option<Exact>,
}

/// A recorded pass that is not rewritten, beside one that is.
pub(super) struct Exact {
    pub pass: Box<Rewritten>,
    /// Microseconds of its launches one after the other, without fusion.
    pub sequential_us: f64,
}

impl Rewritten {
    /// A pass as the module made it.
    fn unchanged(recorded: Arc<Trace>, program: Box<dyn Program>, examples: Vec<Example>, notes: Vec<String>) -> Self {
        let (trace, rewrites) = (recorded.clone(), Vec::new());
        Self { trace, recorded, program, examples, rewrites, notes, outcome: None, exact: None }
    }
}

/// Rewrites launches, if `rewriting` is set and the device is a GPU.
pub(super) fn rewrite(recording: Recording, rewriting: Option<Rewriting>, build: &mut Build) -> Result<Rewritten> {
    let Recording { trace: recorded, mut notes, examples, program, .. } = recording;
    (build.is_rewritten, build.is_kept) = (false, false);
    let Some(rewriting) = rewriting.filter(|_| build.device.is_cuda()) else {
        return Ok(Rewritten::unchanged(recorded, program, examples, notes));
    };
    let on_disk = CachedDecisions::of(&recorded, &rewriting, build);
    let known_us = on_disk.found.as_ref().and_then(|found| found.times).filter(|_| build.options.benchmark_challengers);
    let mut kept = on_disk.found.clone();
    if let (Some(kept), Some(note)) = (&mut kept, known_us.and_then(why_not_rewritten)) {
        kept.refused = Some(note);
    }
    // The compiled kernels of what is kept are kept, too.
    let is_compiled_next = build.options.fuse && kept.is_none();
    let rewritten = build.times.time("rewrite", || {
        let _compiler = is_compiled_next.then(|| CompilerAhead::start(&build.device));
        program.rewrite(examples, rewriting, kept)
    });
    let RewrittenProgram { trace, rewrites, room, notes: told, outcome, is_kept, examples, times, program, exact } =
        rewritten?;
    times.0.into_iter().for_each(|(part, ms)| build.times.move_ms("rewrite", part, ms));
    trace.validate()?;
    // The times of both plans are known from an earlier build, if that decided the same.
    let exact =
        exact.filter(|_| !(is_kept && known_us.is_some())).map(|Recorded { examples, program, sequential_us }| {
            let pass = Rewritten::unchanged(recorded.clone(), program, examples, notes.clone());
            Exact { pass: pass.into(), sequential_us }
        });
    notes.extend(told);
    (build.is_rewritten, build.is_kept) = (!rewrites.is_empty(), is_kept);
    build.settings.constant_room = room;
    let outcome = if is_kept || outcome.is_some() { on_disk.or_new(outcome) } else { None };
    Ok(Rewritten { recorded, trace, program, examples, rewrites, notes, outcome, exact })
}
