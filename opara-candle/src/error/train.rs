//! Errors of training.

use candle::{DType, Shape};

/// Why a step of training was not built.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The function's first output is not a number.
    #[error("a step's first output is its loss, one float, not {}", got.as_ref().map_or("nothing".into(), |(shape, dtype)| format!("{shape:?} of {dtype:?}")))]
    Loss {
        /// Its shape and dtype, if there is any output.
        got: Option<(Shape, DType)>,
    },

    /// Variables that would stay as they are.
    #[error(transparent)]
    Unreached(UnreachedError),

    /// A captured step gave other bits than an eager one.
    #[error("a captured step and an eager one give other bits of {name}: the step draws random numbers or keeps state on the host, or report a fault")]
    Differs {
        /// The variable, the moments, or the output.
        name: String,
    },
}

/// Variables that no gradient of a loss reaches. candle says nothing of it: they would stay as they are.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "no gradient of the loss reaches {}: an operator on the way has no backward pass (candle's `softmax_last_dim`, `rms_norm`, `layer_norm`, \
     `rope` and writes in place have none), or the loss does not depend on them; take operators that have one, or freeze them",
    .names.join(", ")
)]
#[non_exhaustive]
pub struct UnreachedError {
    /// Their names, sorted.
    pub names: Vec<String>,
}
