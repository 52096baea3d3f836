//! The stage `fuse`: replaces groups of launches by one launch each.

use std::sync::Arc;

use super::build::Build;
use super::rewrite::Rewritten;
use crate::backend::{Example, FusedProgram, Fusing, Program};
use crate::report::Rewrite;
use crate::trace::Trace;
use crate::Result;

/// A recorded pass, fused.
pub(super) struct Fused {
    /// The launches as the module made them.
    pub recorded: Arc<Trace>,
    /// The result of each rule of rewriting.
    pub rewrites: Vec<Rewrite>,
    /// Launches before fusion.
    pub unfused: usize,
    /// The trace after fusion; equal to the one before if nothing is fused.
    pub trace: Arc<Trace>,
    pub program: Arc<dyn Program>,
    pub examples: Vec<Example>,
    /// Missed speed-ups, and their reasons.
    pub notes: Vec<String>,
}

impl Fused {
    /// The same with one note more.
    pub fn noting(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }
}

/// Fuses launches, if `fusing` is set and the device is a GPU.
pub(super) fn fuse(rewritten: Rewritten, fusing: Option<Fusing>, build: &mut Build) -> Result<Fused> {
    let Rewritten { recorded, trace, mut notes, examples, rewrites, program, .. } = rewritten;
    let unfused = trace.ops.len();
    build.replaced = 0;
    let Some(fusing) = fusing.filter(|_| build.device.is_cuda()) else {
        return Ok(Fused { recorded, rewrites, unfused, trace, program: program.into(), examples, notes });
    };
    let FusedProgram { trace, replaced, notes: refused, program } =
        build.times.time("fuse", || program.fuse(fusing))?;
    trace.validate()?;
    notes.extend(refused);
    build.replaced = replaced;
    Ok(Fused { recorded, rewrites, unfused, trace, program: program.into(), examples, notes })
}
