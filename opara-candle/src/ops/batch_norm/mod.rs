//! Batch norm in training mode, of rows of pixels with a column for each channel.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Module, Result, Tensor};

use super::column_sums::{activation_derivative, in_sums};
use super::{own_on, own_or};
use crate::activation::Activation;

/// Means and variances of the columns of `x`, `(rows, columns)`, in the type of sums. On a GPU in two launches.
///
/// # Errors
/// A tensor of another rank.
pub(crate) fn batch_moments(x: &Tensor) -> Result<[Tensor; 2]> {
    let (_, columns) = x.dims2()?;
    let composed = || {
        let x = in_sums(x)?;
        let mean = x.mean_keepdim(0)?;
        Tensor::cat(&[&mean, &x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(0)?], 0)
    };
    let both = own_or(x, || gpu!(cuda::moments(x)), composed)?;
    Ok([both.get(0)?.reshape(columns)?, both.get(1)?.reshape(columns)?])
}

/// `x` with means of 0 and variances of 1 in its columns, times a scale, and with a shift, if there are any, and then an activation, in the
/// type of `x`. On a GPU with an activation it is one launch.
///
/// # Errors
/// Vectors that do not have one number a column.
pub(crate) fn batch_norm(
    x: &Tensor,
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    eps: f32,
    activation: Activation,
) -> Result<Tensor> {
    let composed = || {
        let centred = in_sums(x)?.broadcast_sub(moments[0])?;
        let factor = factor(moments, eps)?;
        let y = match vectors {
            Some([scale, shift]) => {
                centred.broadcast_mul(&(factor * in_sums(scale)?)?)?.broadcast_add(&in_sums(shift)?)?
            }
            None => centred.broadcast_mul(&factor)?,
        };
        activation.forward(&y.to_dtype(x.dtype())?)
    };
    // Without an activation what follows is part of a generated kernel.
    match activation {
        Activation::None => composed(),
        _ => own_or(x, || gpu!(cuda::normed(x, moments, vectors, eps, activation)), composed),
    }
}

/// The gradients of the operands of [`batch_norm`], whose moments are those of `x`: of `x`, scale and shift. On a GPU in three launches.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn batch_norm_backward(
    x: &Tensor,
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    gradient: &Tensor,
    eps: f32,
    activation: Activation,
) -> Result<[Tensor; 3]> {
    let (rows, _) = x.dims2()?;
    if let Some(found) =
        own_on(x, || Ok(None), || gpu!(cuda::gradients(x, gradient, moments, vectors, eps, activation)))?
    {
        return Ok(found);
    }
    let normal = in_sums(x)?.broadcast_sub(moments[0])?.broadcast_mul(&factor(moments, eps)?)?;
    let g = in_sums(gradient)?;
    let g = match (activation, vectors) {
        (Activation::None, _) => g,
        (_, Some([scale, shift])) => {
            let y = normal.broadcast_mul(&in_sums(scale)?)?.broadcast_add(&in_sums(shift)?)?;
            (g * activation_derivative(&y, activation)?)?
        }
        (_, None) => (g * activation_derivative(&normal, activation)?)?,
    };
    let (of_shift, of_scale) = (g.sum(0)?, (&g * &normal)?.sum(0)?);
    let mean = |sum: &Tensor| sum.affine(1. / rows as f64, 0.);
    let along = normal.broadcast_mul(&mean(&of_scale)?)?;
    let across = g.broadcast_sub(&mean(&of_shift)?)?;
    let factor = factor(moments, eps)?;
    let by = vectors.map_or_else(|| Ok(factor.clone()), |[scale, _]| &factor * in_sums(scale)?)?;
    Ok([(across - along)?.broadcast_mul(&by)?.to_dtype(x.dtype())?, of_scale, of_shift])
}

/// What differences from the means are multiplied by.
fn factor([_, variance]: [&Tensor; 2], eps: f32) -> Result<Tensor> {
    (variance + f64::from(eps))?.sqrt()?.recip()
}
