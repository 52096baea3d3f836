//! The stages `fold`, `analyse` and `place`, which need the trace alone.

use super::build::Build;
use super::fuse::Fused;
use opara_plan::optimize::Optimized;
use opara_plan::prepared::{self, Analysed, Prepared};

/// Takes out the ops that depend on no input.
pub(super) fn fold(fused: &Fused, build: &mut Build) -> Optimized {
    prepared::fold(&fused.trace, build.settings, &mut build.times)
}

/// Finds the dependencies and the cost of each op.
pub(super) fn analyse(folded: Optimized, build: &mut Build) -> Analysed {
    prepared::analyse(folded, &mut build.times)
}

/// Places the buffers.
pub(super) fn place(analysed: Analysed, build: &mut Build) -> Prepared {
    prepared::place(analysed, build.settings, &mut build.times)
}
