//! Activation functions that follow a matmul or a convolution.

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

#[cfg(feature = "cuda")]
impl Activation {
    /// The activation's code in `activation.cuh`.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Relu => 1,
            Self::Gelu => 2,
            Self::GeluErf => 3,
            Self::Silu => 4,
        }
    }
}
