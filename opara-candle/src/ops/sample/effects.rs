//! Memory effects of the sampling kernels.

use crate::cuda::operator::effects::{writes, Before::PartlyKept, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // sample.cu: rows, vocabulary, tokens, marks
    writes("opara_mark_", 3, Elements(&[Argument(0), Argument(1)])).before(PartlyKept),
    // sample.cu: rows, vocabulary, 1 if each row has its own position, logits, parameters, positions, marks (may be null), out
    writes("opara_sample_", 7, Elements(&[Argument(0)])).of_bytes(4),
];
