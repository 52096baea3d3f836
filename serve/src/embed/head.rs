//! What follows the transformer: pooling, and modules over one vector a text.

use candle::{Module, Tensor};
use opara_candle::nn::LayerNorm;
use opara_candle::ops;

use super::dense::Dense;
use super::Pooling;

/// The modules behind the transformer on a device.
pub(super) struct Head {
    pub pooling: Pooling,
    pub steps: Vec<Step>,
}

/// A module over `(batch, width)` of f32.
pub(super) enum Step {
    Dense(Dense),
    LayerNorm(LayerNorm),
    Normalize,
    Truncate(usize),
}

impl Head {
    /// `(batch, width)` of f32, of hidden states `(batch, tokens, width)` and the mask of [`Pooling::apply`].
    pub fn apply(&self, hidden: &Tensor, mask: &Tensor) -> candle::Result<Tensor> {
        self.steps.iter().try_fold(self.pooling.apply(hidden, mask)?, |x, step| step.apply(&x))
    }
}

impl Step {
    fn apply(&self, x: &Tensor) -> candle::Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Normalize => {
                let squares = ops::sum_keepdim(&ops::sqr(x)?, 1)?;
                // A vector of zeros stays one. Squares that overflow make NaN of the vector, not zeros.
                let norm = ops::custom("root", &[&ops::affine(&squares, 1., 1e-24)?], |x| x[0].div(&x[0].sqrt()?))?;
                ops::div(x, &norm)
            }
            Self::Truncate(width) => ops::contiguous(&ops::narrow(x, 1, 0, *width)?),
        }
    }
}
