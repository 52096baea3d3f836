//! Activation functions that follow a matmul or a convolution.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(in crate::ops) mod effects;
#[cfg(feature = "cuda")]
mod launch;

use candle::{Module, Result, Tensor};

use super::own_or;

/// An activation that is applied to the result of a matmul or a convolution in the same call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// No activation.
    #[default]
    None,
    /// `max(x, 0)`. For NaN the result depends on the kernel: for 16-bit types it is NaN, as with candle; for f32
    /// candle's operator gives 0, and a convolution may do so too.
    Relu,
    /// Gaussian error linear unit, tanh approximation.
    Gelu,
    /// Gaussian error linear unit, exact (with the error function).
    GeluErf,
    /// `x * sigmoid(x)`.
    Silu,
}

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

#[cfg(feature = "cuda")]
impl Activation {
    /// The activation's code in `activation.cuh`.
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

/// `activation(x + bias)`. One launch on a GPU.
pub(super) fn bias_act(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let composed = || match bias {
        Some(bias) => activation.forward(&x.broadcast_add(bias)?),
        None => activation.forward(x),
    };
    own_or(x, || gpu!(cuda::bias_act(x, bias, activation)), composed)
}
