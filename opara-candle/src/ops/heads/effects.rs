//! Memory effects of the head splitting kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // heads.cu: numel, seq, heads, dim, pitch, scale, in, bias, out; the bias may be null
    writes("opara_split_heads_", 8, Elements(&[Argument(0)])),
];
