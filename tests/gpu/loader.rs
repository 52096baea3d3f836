//! Batches that are uploaded beside the device's work.

use crate::common::gpu;
use crate::common::loader::{assert_batches_follow_their_order, assert_faults_arrive};

#[test]
fn batches_follow_their_order() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_batches_follow_their_order(&device))
}

#[test]
fn faults_arrive() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_faults_arrive(&device))
}
