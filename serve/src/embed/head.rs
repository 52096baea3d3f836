//! What follows the transformer: a vector a text, the logits of classes, or a weight for each word of the vocabulary.

use candle::{DType, Module, Tensor};
use opara_candle::nn::LayerNorm;
use opara_candle::ops;

use super::dense::Dense;
use super::layers::Layers;
use super::splade::Splade;
use super::{EmbedError, Pooling};

/// The modules behind the transformer on a device.
pub(super) enum Head {
    /// A vector a text.
    Vector { pooling: Pooling, steps: Vec<Step> },
    /// The logits of classes.
    Classes { pooling: Pooling, layers: Layers },
    /// A weight for each word of the vocabulary.
    Words { layers: Layers, splade: Splade },
    /// The hidden states themselves.
    Tokens,
}

/// A module over `(batch, width)` of f32.
pub(super) enum Step {
    Dense(Dense),
    LayerNorm(LayerNorm),
    Normalize,
}

impl Head {
    /// Rows of f32, of hidden states `(batch, tokens, width)` and the mask of [`Pooling::apply`]. States `(batch, width)` are pooled
    /// already.
    pub fn apply(&self, hidden: &Tensor, mask: &Tensor) -> candle::Result<Tensor> {
        let pooled = |pooling: &Pooling| match hidden.rank() {
            2 => ops::to_dtype(hidden, DType::F32),
            _ => pooling.apply(hidden, mask),
        };
        match self {
            Self::Vector { pooling, .. } | Self::Classes { pooling, .. } => self.behind(&pooled(pooling)?),
            Self::Words { layers, splade } => splade.apply(&layers.forward(hidden)?, mask),
            Self::Tokens if hidden.rank() == 2 => Err(candle::Error::wrap(EmbedError::NoTokens)),
            Self::Tokens => ops::to_dtype(hidden, DType::F32),
        }
    }

    /// What follows pooling, if there is one: `(texts, width)` of f32 in, rows of f32 out.
    pub fn behind(&self, pooled: &Tensor) -> candle::Result<Tensor> {
        match self {
            Self::Vector { steps, .. } => steps.iter().try_fold(pooled.clone(), |x, step| step.apply(&x)),
            Self::Classes { layers, .. } => layers.forward(pooled),
            Self::Words { .. } | Self::Tokens => Ok(pooled.clone()),
        }
    }

    /// How hidden states become a vector a text, if they do.
    pub fn pooling(&self) -> Option<&Pooling> {
        match self {
            Self::Vector { pooling, .. } | Self::Classes { pooling, .. } => Some(pooling),
            Self::Words { .. } | Self::Tokens => None,
        }
    }

    /// Whether it leaves out tokens of a prompt.
    pub fn skips_prompt(&self) -> bool {
        matches!(self, Self::Vector { pooling, .. } if !pooling.has_prompt)
    }
}

impl Step {
    pub fn apply(&self, x: &Tensor) -> candle::Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Normalize => {
                let squares = ops::sum_keepdim(&ops::sqr(x)?, 1)?;
                // A vector of zeros stays one. Squares that overflow make NaN of the vector, not zeros.
                let norm = ops::custom("root", &[&ops::affine(&squares, 1., 1e-24)?], |x| x[0].div(&x[0].sqrt()?))?;
                ops::div(x, &norm)
            }
        }
    }
}
