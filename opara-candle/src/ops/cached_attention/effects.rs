//! Memory effects of the cached attention kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // cached_attention.cuh: numel, sizes, ..., qkv, scales of queries and of keys, start, rotary, by_distance, cache, out; the
    // scales and both tables may be null
    writes("opara_cached_attention_", 18, Elements(&[Argument(0)])).updates(17).early(&[14, 15, 16, 17]),
];
