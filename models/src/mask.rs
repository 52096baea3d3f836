//! Additive attention masks.

use candle::{DType, Result, Tensor};
use opara_candle::{ops, scope};

/// The additive mask value that makes a score vanish in the softmax: half of the smallest finite value. It stays finite
/// when a score is added, so that a row of padding alone does not give NaN.
pub(crate) fn hidden(dtype: DType) -> f64 {
    -0.5 * if dtype == DType::F16 { 65504. } else { f64::from(f32::MAX) }
}

/// Converts a mask to an additive one: zero where `mask` is one, a large negative value where it is zero.
pub(crate) fn additive(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let _scope = scope("mask");
    ops::affine(&ops::to_dtype(mask, dtype)?, -hidden(dtype), hidden(dtype))
}
