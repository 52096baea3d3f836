//! The description of a matmul with a weight.

use candle::DType;

use crate::ops::Activation;

/// `y = x * weight^T`, of matrices whose rows follow each other, and what is done to `y` in the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    /// Of all operands: f32, f16 or bf16.
    pub dtype: DType,
    /// Whether f32 may pass as TF32.
    pub tf32: bool,
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x` and of the weight.
    pub inner: usize,
    /// Rows of the weight, columns of `y`.
    pub columns: usize,
    /// Whether one is added to each row.
    pub bias: bool,
    /// What follows.
    pub activation: Activation,
}
