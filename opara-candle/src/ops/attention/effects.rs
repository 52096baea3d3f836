//! Memory effects of the attention kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // attention.cu: numel, queries, keys, heads, sharing, scale, strides of q, k, v and bias, q, k, v, bias, out,
    // masks; the bias may be null
    writes("opara_attention_", 22, Elements(&[Argument(0)])),
];
