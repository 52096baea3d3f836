//! What a device lacks for the fastest operators.

use candle::{CudaDevice, Result};

use super::attention::launch::lacks as attention_lacks;
use super::matmul::launch::lacks as matmul_lacks;

/// The operators that use libraries or several launches because the device or the compiled code lacks something, each
/// with the reason.
///
/// # Errors
/// A failed driver call.
pub(crate) fn lacks(device: &CudaDevice) -> Result<Vec<String>> {
    let lacks = [matmul_lacks(device)?, attention_lacks(device)?];
    Ok(lacks.into_iter().flatten().collect())
}
