//! Activation functions as operators.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Module, Result, Tensor};

#[cfg(any(feature = "cuda", test))]
use super::column_sums::{activation_derivative, in_sums};
use super::own_or;
use crate::activation::Activation;

/// Applies the activation as an operator of its own.
impl Module for Activation {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(x.clone()),
            Self::Relu => super::relu(x),
            Self::Gelu => super::gelu(x),
            Self::GeluErf => super::gelu_erf(x),
            Self::Silu => super::silu(x),
        }
    }
}

/// `activation(x + bias)`. One launch on a GPU.
pub(crate) fn bias_act(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let composed = || match bias {
        Some(bias) => activation.forward(&x.broadcast_add(bias)?),
        None => activation.forward(x),
    };
    own_or(x, || gpu!(cuda::bias_act(x, bias, activation)), composed)
}

/// The gradient of `x` where `gradient` is that of its activation. One launch on a GPU.
///
/// # Errors
/// Shapes that do not agree.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn activation_gradient(x: &Tensor, gradient: &Tensor, activation: Activation) -> Result<Tensor> {
    let composed =
        || (in_sums(gradient)? * activation_derivative(&in_sums(x)?, activation)?)?.to_dtype(gradient.dtype());
    own_or(x, || gpu!(cuda::activation_gradient(x, gradient, activation)), composed)
}
