//! Collects the memory effects of this library's kernels from the operators' folders.

use super::{
    activation, advance, argmax, attention, cached_attention, cat, causal_attention, conv, double_binary, double_conv,
    embedding, error_totals, gemv, group_norm, heads, matmul, new_tokens, norm, one_query, pool, quantized, sample,
    softmax, space_to_depth, upsample, write_rows,
};
use crate::cuda::operator::effects::Effects;

/// The effects of all kernels of this library, except generated ones.
pub(crate) const EFFECTS: &[&[Effects]] = &[
    activation::effects::EFFECTS,
    advance::effects::EFFECTS,
    argmax::effects::EFFECTS,
    attention::effects::EFFECTS,
    cached_attention::effects::EFFECTS,
    cat::effects::EFFECTS,
    causal_attention::effects::EFFECTS,
    conv::effects::EFFECTS,
    double_binary::effects::EFFECTS,
    double_conv::effects::EFFECTS,
    embedding::effects::EFFECTS,
    error_totals::effects::EFFECTS,
    gemv::effects::EFFECTS,
    group_norm::effects::EFFECTS,
    heads::effects::EFFECTS,
    matmul::effects::EFFECTS,
    new_tokens::effects::EFFECTS,
    norm::effects::EFFECTS,
    one_query::effects::EFFECTS,
    pool::effects::EFFECTS,
    quantized::effects::EFFECTS,
    sample::effects::EFFECTS,
    softmax::effects::EFFECTS,
    space_to_depth::effects::EFFECTS,
    upsample::effects::EFFECTS,
    write_rows::effects::EFFECTS,
];
