//! Sums of columns, in a fixed order: gradients of biases.

#[cfg(feature = "cuda")]
pub(super) mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{DType, Result, Tensor, D};

use super::own_on;
use crate::activation::Activation;

/// The sum over all dimensions but the last one. Sums of 16-bit types are in f32.
///
/// # Errors
/// A scalar.
pub(crate) fn column_sums(x: &Tensor) -> Result<Tensor> {
    let composed = || {
        let columns = x.dim(D::Minus1)?;
        let rows = in_sums(x)?.contiguous()?.reshape(((), columns))?;
        rows.sum(0)?.to_dtype(x.dtype())
    };
    own_on(x, || Ok(None), || gpu!(cuda::column_sums(x)))?.map_or_else(composed, Ok)
}

/// The sums of a gradient over the dimensions that an operand was broadcast along.
///
/// # Errors
/// A shape that does not broadcast to the gradient's.
pub(super) fn summed_like(gradient: &Tensor, operand: &Tensor) -> Result<Tensor> {
    let ahead = gradient.rank() - operand.rank().min(gradient.rank());
    let dims = [&vec![1; ahead], operand.dims()].concat();
    let along: Vec<_> = (0..gradient.rank()).filter(|&dim| dims[dim] == 1 && gradient.dims()[dim] != 1).collect();
    let sums = if along.is_empty() { gradient.clone() } else { in_sums(gradient)?.sum_keepdim(along)? };
    sums.reshape(operand.shape())?.to_dtype(operand.dtype())
}

/// In the type of sums: f32 for 16 bits.
pub(crate) fn in_sums(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => Ok(x.clone()),
    }
}

/// The gradient of `x` where `gradient` is that of its activation, and the sums of its columns: the gradient of a bias in `x`. At 0 a
/// ReLU has candle's derivative, 1.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn activation_backward(x: &Tensor, gradient: &Tensor, activation: Activation) -> Result<(Tensor, Tensor)> {
    let own = || gpu!(cuda::activation_gradient(x, gradient, activation));
    if let Some(pair) = own_on(x, || Ok(None), own)? {
        return Ok(pair);
    }
    let dx = match activation {
        Activation::None => gradient.clone(),
        _ => (in_sums(gradient)? * activation_derivative(&in_sums(x)?, activation)?)?.to_dtype(x.dtype())?,
    };
    let sums = column_sums(&dx)?;
    Ok((dx, sums))
}

/// The derivative of an activation at each element.
///
/// # Errors
/// No floats.
pub(crate) fn activation_derivative(x: &Tensor, activation: Activation) -> Result<Tensor> {
    const ROOT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
    match activation {
        Activation::None => x.ones_like(),
        Activation::Relu => x.ge(0.)?.to_dtype(x.dtype()),
        Activation::Gelu => {
            // Beyond that the square would overflow.
            let x = x.clamp(-1e4, 1e4)?;
            let square = x.sqr()?;
            let t = (ROOT_2_OVER_PI * (&x + (0.044715 * (&square * &x)?)?)?)?.tanh()?;
            let inner = square.affine(0.134145 * ROOT_2_OVER_PI, ROOT_2_OVER_PI)?;
            ((0.5 * &x)? * t.sqr()?.affine(-1., 1.)? * inner)? + t.affine(0.5, 0.5)?
        }
        Activation::GeluErf => {
            let density = (x.sqr()? * -0.5)?.exp()?.affine(0.398_942_280_401_432_7, 0.)?;
            (x * density)? + (x * std::f64::consts::FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?
        }
        Activation::Silu => {
            let gate = candle_nn::ops::sigmoid(x)?;
            &gate * (x * gate.affine(-1., 1.)?)?.affine(1., 1.)?
        }
    }
}
