//! Backward passes of operators on a CPU.

use candle::{Device, Result};

use crate::common::backward::{assert_gradients_are_accurate, assert_gradients_are_differences};

#[test]
fn gradients_are_differences() -> Result<()> {
    assert_gradients_are_differences()
}

#[test]
fn gradients_are_accurate() -> Result<()> {
    assert_gradients_are_accurate(&Device::Cpu)
}
