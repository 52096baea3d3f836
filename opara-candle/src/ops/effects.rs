//! Collects the memory effects of this library's kernels from the operators' folders.

use super::{activation, attention, cat, conv, embedding, heads, matmul, norm, pool, softmax, space_to_depth};
use crate::cuda::kernels::effects::Effects;

/// The effects of all kernels of this library, except generated ones.
pub(crate) const EFFECTS: &[&[Effects]] = &[
    activation::effects::EFFECTS,
    attention::effects::EFFECTS,
    cat::effects::EFFECTS,
    conv::effects::EFFECTS,
    embedding::effects::EFFECTS,
    heads::effects::EFFECTS,
    matmul::effects::EFFECTS,
    norm::effects::EFFECTS,
    pool::effects::EFFECTS,
    softmax::effects::EFFECTS,
    space_to_depth::effects::EFFECTS,
];
