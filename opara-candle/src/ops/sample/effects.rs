//! Memory effects of the sampling kernels.

use crate::cuda::kernels::effects::{writes, Before::PartlyKept, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // sample.cu: rows, vocabulary, tokens, what was seen
    writes("opara_mark_", 3, Elements(&[Argument(0), Argument(1)])).before(PartlyKept),
    // sample.cu: rows, vocabulary, whether rows have positions of their own, logits, parameters, positions, what was seen,
    // out; what was seen may be null
    writes("opara_sample_", 7, Elements(&[Argument(0)])).of_bytes(4),
];
