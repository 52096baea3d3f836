//! Products of small matrices of f32, and their gradients, each in one launch. They may begin with the activation of an operand, so that
//! what is kept for the gradients is its operand.

#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod gradients;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Result, Tensor};

pub(crate) use self::gradients::SmallGradients;
use super::own_on;
use crate::activation::Activation;

/// `after(before(x) * weight^T + bias)` of `x`, `(rows, inner)`, and `weight`, `(columns, inner)`. `None` if there is no kernel for the
/// operands, or a library is faster.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn small_product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    [before, after]: [Activation; 2],
) -> Result<Option<Tensor>> {
    own_on(x, || Ok(None), || gpu!(cuda::product(x, weight, bias, [before, after])))
}

/// The gradients of [`small_product`] without an activation behind it. `None` as there.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn small_gradients(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    before: Activation,
    is_x_asked: bool,
) -> Result<Option<SmallGradients>> {
    own_on(x, || Ok(None), || gpu!(cuda::gradients(x, weight, gradient, before, is_x_asked)))
}
