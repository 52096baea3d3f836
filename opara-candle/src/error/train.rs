//! Errors of training.

use candle::{DType, DeviceLocation, Shape};

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

    /// The optimizer has no variable.
    #[error("the optimizer has no variable to train: make the model before the optimizer, and leave some variable that is not frozen")]
    Nothing,

    /// A batch that is unlike the one that the trainer was built with.
    #[error("a batch is of {expected:?}, as the first one, not of {got:?}: convert it with `Tensor::to_dtype`, or build another trainer")]
    Batch {
        /// Device and dtype of each tensor of the first batch.
        expected: Vec<(DeviceLocation, DType)>,
        /// Those of this one.
        got: Vec<(DeviceLocation, DType)>,
    },

    /// Variables of another trainer.
    #[error("another trainer, of another optimizer, has {}: drop it, or build both with clones of one optimizer", names.join(", "))]
    Shared {
        /// Their names, sorted.
        names: Vec<String>,
    },

    /// Variables that would stay as they are.
    #[error(transparent)]
    Unreached(UnreachedError),

    /// An operator on the way from the loss to variables has no derivative.
    #[error(
        "`{launch}`{} has no derivative, and gradients of {} go through it: take another operator there, or freeze them",
        scope.as_ref().map_or(String::new(), |scope| format!(" (at `{scope}`)")), names.join(", ")
    )]
    NoDerivative {
        /// The launch.
        launch: String,
        /// Where the module called it, if spans label that.
        scope: Option<String>,
        /// The variables that would lose a gradient, sorted.
        names: Vec<String>,
    },

    /// The loss of the batch is infinite or not a number, so that its gradients cannot be judged.
    #[error("the loss of the batch is {loss}, so that its gradients cannot be judged")]
    NotFinite {
        /// The loss.
        loss: f64,
    },

    /// A gradient is farther from that of double precision than candle's operators are.
    #[error("{name} is {ours:.1e} away from double precision, by candle's operators {candles:.1e}: report a fault")]
    Inaccurate {
        /// A variable's gradient, or the loss.
        name: String,
        /// Relative to the root of the mean square.
        ours: f64,
        /// The same of candle's operators.
        candles: f64,
    },

    /// No division of the forward pass into segments fits into [`Builder::train_memory`](crate::Builder::train_memory).
    #[error("a step takes {needed} bytes at least, and its limit is {limit}: raise `Builder::train_memory`, or take a smaller batch")]
    Memory {
        /// Bytes of the smallest step that was built.
        needed: u64,
        /// The limit.
        limit: u64,
    },

    /// A limit of memory where candle's backward pass computes the gradients, which keeps all values.
    #[error("`Builder::train_memory` divides steps that are differentiated as a graph: set `Numerics::Accurate` on a GPU, or no limit")]
    NoSegments,

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
