//! Memory effects of the counter kernels.

use crate::cuda::operator::effects::{writes, Before::AddedTo, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // advance.cu: numel, increment, counters
    writes("opara_advance_", 2, Elements(&[Argument(0)])).before(AddedTo),
];
