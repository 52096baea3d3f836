//! The key of a plan: shapes and dtypes of a call's inputs.

use candle::{DType, Tensor};

/// Shapes and dtypes of a call.
pub(crate) type Key = Vec<(Vec<usize>, DType)>;

/// The key of these inputs.
pub(crate) fn key(inputs: &[Tensor]) -> Key {
    inputs.iter().map(|t| (t.dims().to_vec(), t.dtype())).collect()
}
