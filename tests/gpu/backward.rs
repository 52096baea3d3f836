//! Backward passes of operators on a GPU.

use crate::common::backward::assert_gradients_are_accurate;
use crate::common::gpu;

#[test]
fn gradients_are_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_gradients_are_accurate(&device)?)
}
