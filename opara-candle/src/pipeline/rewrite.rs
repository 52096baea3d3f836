//! The stage `rewrite`: replaces recorded launches by other operators.

use std::sync::Arc;

use super::build::Build;
use crate::backend::{Example, Program, Recorded, Recording, Rewriting, RewrittenProgram};
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
    /// The pass without rewriting, if something is rewritten.
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
        Self { trace: recorded.clone(), recorded, program, examples, rewrites: Vec::new(), notes, exact: None }
    }
}

/// Rewrites launches, if `rewriting` is set and the device is a GPU.
pub(super) fn rewrite(recording: Recording, rewriting: Option<Rewriting>, build: &mut Build) -> Result<Rewritten> {
    let Recording { trace: recorded, mut notes, examples, program } = recording;
    build.is_rewritten = false;
    let Some(rewriting) = rewriting.filter(|_| build.device.is_cuda()) else {
        return Ok(Rewritten::unchanged(recorded, program, examples, notes));
    };
    let RewrittenProgram { trace, rewrites, room, notes: kept, examples, times, program, exact } =
        build.times.time("rewrite", || program.rewrite(examples, rewriting))?;
    times.0.into_iter().for_each(|(part, ms)| build.times.move_ms("rewrite", part, ms));
    trace.validate()?;
    let exact = exact.map(|Recorded { examples, program, sequential_us }| {
        let pass = Rewritten::unchanged(recorded.clone(), program, examples, notes.clone());
        Exact { pass: pass.into(), sequential_us }
    });
    notes.extend(kept);
    build.is_rewritten = !rewrites.is_empty();
    build.settings.constant_room = room;
    Ok(Rewritten { recorded, trace, program, examples, rewrites, notes, exact })
}
