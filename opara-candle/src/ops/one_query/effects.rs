//! Memory effects of the attention kernels of one query.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // one_query.cuh: numel, sizes, strides of q, k, v and bias, scale, q, k, v, bias, out; the bias may be null
    writes("opara_one_query_attention_", 19, Elements(&[Argument(0)])).early(&[16, 17, 18]),
];
