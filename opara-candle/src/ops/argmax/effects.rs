//! Memory effects of the argmax kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // argmax.cu: rows, columns, in, out
    writes("opara_argmax_", 3, Elements(&[Argument(0)])).of_bytes(4),
];
