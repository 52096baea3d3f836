//! What follows a product or a convolution.

use candle::{Module, Result, Tensor};

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
