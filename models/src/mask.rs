//! Attention masks as something to add to scores.

use candle::{DType, Result, Tensor};
use opara_candle::{ops, scope};

/// What makes a score vanish in the softmax. Half of the largest finite value: with a score added it stays finite, so
/// that a row of padding alone gives no NaN.
pub(crate) fn hidden(dtype: DType) -> f64 {
    -0.5 * if dtype == DType::F16 { 65504. } else { f64::from(f32::MAX) }
}

/// What to add to the scores: zero where `mask` is one, hugely negative where it is zero.
pub(crate) fn additive(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let _scope = scope("mask");
    ops::affine(&ops::to_dtype(mask, dtype)?, -hidden(dtype), hidden(dtype))
}
