//! What follows a product or a convolution.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(in crate::ops) mod effects;
#[cfg(feature = "cuda")]
mod launch;

use candle::{Module, Result, Tensor};

use super::own_or;

/// What is applied to the result of a product or a convolution, in the same call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`. What it makes of NaN depends on the kernel: of the 16-bit types NaN, as candle's; of f32 candle's operator
    /// makes 0 of it, and so may a convolution.
    Relu,
    /// Gaussian error linear unit, by the hyperbolic tangent.
    Gelu,
    /// Gaussian error linear unit, by the error function.
    GeluErf,
    /// `x * sigmoid(x)`.
    Silu,
}

/// As an operator of its own.
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

#[cfg(feature = "cuda")]
impl Activation {
    /// What `activation.cuh` calls it.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Relu => 1,
            Self::Gelu => 2,
            Self::GeluErf => 3,
            Self::Silu => 4,
        }
    }
}

/// `activation(x + bias)`: on a GPU one launch.
pub(super) fn bias_act(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let composed = || match bias {
        Some(bias) => activation.forward(&x.broadcast_add(bias)?),
        None => activation.forward(x),
    };
    own_or(x, || gpu!(cuda::bias_act(x, bias, activation)), composed)
}
