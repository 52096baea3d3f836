//! Memory effects of the causal attention kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // causal_attention.cuh: numel, sizes, scale, q, cache, start, out
    writes("opara_causal_attention_", 11, Elements(&[Argument(0)])).early(&[10]),
];
