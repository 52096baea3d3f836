//! What executors leave on a GPU: alone in its program, since others' tests would take memory of the device meanwhile.
//! Without a GPU, or without the `cuda` feature, the test says that it skips.

mod common;

use candle::{Module, Tensor};
use common::gpu;
use opara_candle::{Mode, OparaExecutor};

#[test]
fn executors_come_and_go_without_growth() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = Tensor::rand(-1f32, 1., (256, 256), &device)?;
    let module = move |x: &Tensor| x.matmul(&weight)?.relu()?.matmul(&weight)?.gelu();
    let x = Tensor::rand(-1f32, 1., (64, 256), &device)?;
    let build = || -> anyhow::Result<()> {
        let fast = OparaExecutor::new(module.clone(), &x)?;
        assert_eq!(fast.report().mode, Mode::Graph, "{}", fast.report());
        fast.forward(&x)?;
        device.synchronize()?;
        Ok(())
    };
    let free_after = |builds| -> anyhow::Result<usize> {
        (0..builds).try_for_each(|_| build())?;
        Ok(opara_candle::device_memory::free_memory(&device)?)
    };
    // Other programs take memory of the same device meanwhile: a leak takes some in every round.
    let mut before = free_after(20)?;
    let mut lost = Vec::new();
    for _ in 0..3 {
        let after = free_after(100)?;
        lost.push(before.saturating_sub(after));
        before = after;
    }
    assert!(lost.contains(&0), "bytes of free device memory lost in each round: {lost:?}");
    Ok(())
}
