//! Gradients of layer norm and RMS norm.

use candle::{bail, Result, Tensor, D};

#[cfg(feature = "cuda")]
use super::gradient_cuda;
use crate::ops::column_sums::{column_sums, in_sums};
use crate::ops::own_on;

/// The gradients of the operands of a layer norm.
pub(crate) struct LayerNormGradients {
    pub x: Tensor,
    pub scale: Tensor,
    pub shift: Tensor,
}

/// The gradients of [`layer_norm`](super::layer_norm)'s operands by that of its result. `beside`, if given, is added to that of `x`. Sums are
/// in f32; their order is fixed.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn layer_norm_backward(
    x: &Tensor,
    scale: &Tensor,
    gradient: &Tensor,
    beside: Option<&Tensor>,
    eps: f32,
) -> Result<LayerNormGradients> {
    let columns = x.dim(D::Minus1)?;
    let own = || gpu!(gradient_cuda::gradients(x, scale, gradient, beside, eps, true));
    if let Some((x, vectors)) = own_on::<(Tensor, Tensor)>(x, || Ok(None), own)? {
        return Ok(LayerNormGradients {
            x,
            scale: vectors.narrow(0, 0, columns)?,
            shift: vectors.narrow(0, columns, columns)?,
        });
    }
    let (dx, of_scale) = composed(x, scale, gradient, beside, eps, true)?;
    Ok(LayerNormGradients { x: dx, scale: of_scale, shift: column_sums(gradient)? })
}

/// The gradients of `x` and `scale` in [`rms_norm`](super::rms_norm) by that of its result, as [`layer_norm_backward`].
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn rms_norm_backward(
    x: &Tensor,
    scale: &Tensor,
    gradient: &Tensor,
    beside: Option<&Tensor>,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let own = || gpu!(gradient_cuda::gradients(x, scale, gradient, beside, eps, false));
    own_on(x, || Ok(None), own)?.map_or_else(|| composed(x, scale, gradient, beside, eps, false), Ok)
}

/// The same by candle's operators.
fn composed(
    x: &Tensor,
    scale: &Tensor,
    gradient: &Tensor,
    beside: Option<&Tensor>,
    eps: f32,
    is_centred: bool,
) -> Result<(Tensor, Tensor)> {
    let dtype = x.dtype();
    if gradient.shape() != x.shape() {
        bail!("a gradient of {:?} of a norm of {:?}", gradient.shape(), x.shape())
    }
    if x.elem_count() == 0 {
        return Ok((x.clone(), scale.zeros_like()?));
    }
    let [x, scale, gradient] = [in_sums(x)?, in_sums(scale)?, in_sums(gradient)?];
    let mean = |x: &Tensor| x.mean_keepdim(D::Minus1);
    let x = if is_centred { x.broadcast_sub(&mean(&x)?)? } else { x };
    let factor = (mean(&x.sqr()?)? + f64::from(eps))?.sqrt()?.recip()?;
    let normed = x.broadcast_mul(&factor)?;
    let of_scale = column_sums(&(&gradient * &normed)?)?.to_dtype(dtype)?;
    let gradient = gradient.broadcast_mul(&scale)?;
    let product = normed.broadcast_mul(&mean(&(&gradient * &normed)?)?)?;
    let centred = if is_centred { gradient.broadcast_sub(&mean(&gradient)?)? } else { gradient };
    let of_x = (centred - product)?.broadcast_mul(&factor)?;
    let of_x = beside.map_or(Ok(of_x.clone()), |beside| of_x + in_sums(beside)?)?;
    Ok((of_x.to_dtype(dtype)?, of_scale))
}
