//! The stage `rewrite`: replaces recorded launches by other operators.

use std::sync::Arc;

use super::build::Build;
use crate::backend::{Example, Program, Recording, Rewriting, RewrittenProgram};
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
}

/// Rewrites launches, if `rewriting` is set and the device is a GPU.
pub(super) fn rewrite(recording: Recording, rewriting: Option<Rewriting>, build: &mut Build) -> Result<Rewritten> {
    let Recording { trace: recorded, mut notes, examples, program } = recording;
    build.is_rewritten = false;
    let Some(rewriting) = rewriting.filter(|_| build.device.is_cuda()) else {
        return Ok(Rewritten { trace: recorded.clone(), recorded, program, examples, rewrites: Vec::new(), notes });
    };
    let RewrittenProgram { trace, rewrites, room, notes: kept, examples, program } =
        build.times.time("rewrite", || program.rewrite(examples, rewriting))?;
    trace.validate()?;
    notes.extend(kept);
    build.is_rewritten = !rewrites.is_empty();
    build.settings.constant_room = room;
    Ok(Rewritten { recorded, trace, program, examples, rewrites, notes })
}
