//! The stage `fuse`: replaces groups of launches by one launch each.

use std::sync::Arc;

use super::build::Build;
use crate::backend::{Example, FusedProgram, Fusing, Program, Recording};
use crate::trace::Trace;
use crate::Result;

/// A recorded pass, fused.
pub(super) struct Fused {
    /// The launches as the module made them.
    pub recorded: Arc<Trace>,
    /// What the program launches: the same where nothing is fused.
    pub trace: Arc<Trace>,
    pub program: Arc<dyn Program>,
    pub examples: Vec<Example>,
    /// What could be faster and is not, and why.
    pub notes: Vec<String>,
}

/// Fuses what can be fused, if asked to.
pub(super) fn fuse(recording: Recording, fusing: Option<Fusing>, build: &mut Build) -> Result<Fused> {
    let Recording { trace: recorded, mut notes, examples, program } = recording;
    build.replaced = 0;
    let Some(fusing) = fusing.filter(|_| build.device.is_cuda()) else {
        return Ok(Fused { trace: recorded.clone(), recorded, program: program.into(), examples, notes });
    };
    let FusedProgram { trace, replaced, notes: refused, program } =
        build.times.time("fuse", || program.fuse(fusing))?;
    trace.validate()?;
    notes.extend(refused);
    build.replaced = replaced;
    Ok(Fused { recorded, trace, program: program.into(), examples, notes })
}
