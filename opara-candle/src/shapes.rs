//! What a plan is built for: the shapes and dtypes of a call's inputs.

use candle::{DType, Tensor};

/// Shapes and dtypes of a call.
pub(crate) type Key = Vec<(Vec<usize>, DType)>;

/// Those of these inputs.
pub(crate) fn key(inputs: &[Tensor]) -> Key {
    inputs.iter().map(|t| (t.dims().to_vec(), t.dtype())).collect()
}
