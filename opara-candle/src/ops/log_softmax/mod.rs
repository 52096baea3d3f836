//! The logarithm of the softmax of rows of logits, each at one class: what a cross-entropy is the mean of.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod pitch;

use candle::{Result, Tensor, D};

use self::pitch::pitch;
use super::column_sums::in_sums;
use super::own_or;

/// For each row of `x`, `(rows, columns)`, the logarithm of its softmax at the row's class, in the type of sums. Neither logarithms nor
/// weights are stored. On a GPU a class that does not exist gives NaN.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn log_softmax_at(x: &Tensor, classes: &Tensor) -> Result<Tensor> {
    let composed = || logarithms(x)?.gather(&classes.unsqueeze(1)?, 1)?.squeeze(1);
    own_or(x, || gpu!(cuda::log_softmax_at(x, classes)), composed)
}

/// The gradient of `x` in [`log_softmax_at`] by that of its result, whose logits are read again. Behind each row are as many zeros as there are
/// other elements behind those of `x`.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn log_softmax_at_backward(x: &Tensor, classes: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let composed = || {
        let weights = logarithms(x)?.exp()?;
        let ones = Tensor::ones((rows, 1), weights.dtype(), x.device())?;
        let differences = weights.neg()?.scatter_add(&classes.unsqueeze(1)?, &ones, 1)?;
        let gradient = gradient.unsqueeze(1)?.to_dtype(weights.dtype())?;
        let more = pitch(x) - columns;
        differences.broadcast_mul(&gradient)?.to_dtype(x.dtype())?.pad_with_zeros(1, 0, more)
    };
    own_or(x, || gpu!(cuda::gradient(x, classes, gradient)), composed)
}

fn logarithms(x: &Tensor) -> Result<Tensor> {
    candle_nn::ops::log_softmax(&in_sums(x)?.contiguous()?, D::Minus1)
}
