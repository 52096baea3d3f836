//! Trainers on a GPU, whose steps are captured.

use opara_candle::{Numerics, OparaExecutor};

use crate::common::gpu;
use crate::common::trainer::{
    assert_evaluation_follows, assert_faults_are_typed, assert_mixed_trains, assert_shapes_share_weights,
};

fn accurate() -> opara_candle::Builder {
    OparaExecutor::builder().numerics(Numerics::Accurate)
}

#[test]
fn shapes_share_weights() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_shapes_share_weights(&device))
}

#[test]
fn evaluation_follows() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    assert_evaluation_follows(&device, OparaExecutor::builder)?;
    assert_evaluation_follows(&device, accurate)
}

#[test]
fn mixed_precision_trains() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for builder in [OparaExecutor::builder, accurate] {
        assert_mixed_trains(&device, tempfile::tempdir()?.path(), builder)?;
    }
    Ok(())
}

#[test]
fn faults_are_typed() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_faults_are_typed(&device))
}
