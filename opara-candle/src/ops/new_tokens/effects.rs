//! Memory effects of the kernels that take new tokens into a cache.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // new_tokens.cu: numel, sizes, ..., qkv, scales of queries and of keys, start, rotary, cache, queries; the scales and the table
    // may be null
    writes("opara_new_tokens_", 15, Elements(&[Argument(0)])).updates(14).early(&[12, 13]),
];
