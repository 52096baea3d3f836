//! Trainers on the CPU.

use candle::Device;
use opara_candle::OparaExecutor;

use crate::common::trainer::{
    assert_evaluation_follows, assert_faults_are_typed, assert_mixed_trains, assert_shapes_share_weights,
};

#[test]
fn shapes_share_weights() -> anyhow::Result<()> {
    assert_shapes_share_weights(&Device::Cpu)
}

#[test]
fn evaluation_follows() -> anyhow::Result<()> {
    assert_evaluation_follows(&Device::Cpu, OparaExecutor::builder)
}

#[test]
fn mixed_precision_trains() -> anyhow::Result<()> {
    assert_mixed_trains(&Device::Cpu, tempfile::tempdir()?.path(), OparaExecutor::builder)
}

#[test]
fn faults_are_typed() -> anyhow::Result<()> {
    assert_faults_are_typed(&Device::Cpu)
}
