//! Memory effects of the cached attention kernels.

use crate::cuda::kernels::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // cached_attention.cuh: numel, sizes, ..., qkv, scales of queries and of keys, start, rotary, cache, out; the scales may
    // be null
    writes("opara_cached_attention_", 16, Elements(&[Argument(0)])).updates(15).early(&[13, 14, 15]),
];
