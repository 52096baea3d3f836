//! Host memory that an executor keeps for shapes that were evicted. On the CPU and on a GPU. The GPU test skips without
//! a GPU or the feature `cuda`, and says so.

mod common;

use anyhow::ensure;
use candle::{Device, Module, Tensor};
use common::{gpu, isolated, same_bits, waves, CPU};
use opara_candle::{ops, OparaExecutor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Shapes in each half of the calls.
const SHAPES: usize = 150;

/// Bytes that the second half of the shapes may leave.
const SLACK: usize = 1 << 20;

fn module(x: &Tensor) -> candle::Result<Tensor> {
    let row = ops::softmax_last_dim(&ops::affine(&ops::tanh(x)?, 2., 1.)?)?;
    ops::add(&ops::sqr(&row)?, x)
}

/// Calls an executor that keeps two plans with many shapes, and measures how much the second half of them leaves.
fn assert_bounded(device: &Device) -> anyhow::Result<()> {
    let x = |rows: usize| waves(rows, (rows, 40))?.to_device(device);
    let fast = OparaExecutor::builder().max_shapes(2).cache_folder(None).build(module, &x(1)?)?;
    let call = |rows: std::ops::Range<usize>| -> anyhow::Result<usize> {
        for rows in rows {
            let x = x(rows)?;
            ensure!(same_bits(&fast.forward(&x)?, &module(&x)?)?, "{rows} rows: wrong numbers");
        }
        // Both measurements are made with the same two plans.
        for rows in [1, 2] {
            fast.forward(&x(rows)?)?;
        }
        Ok(MEMORY.current_usage())
    };
    let half = call(3..SHAPES)?;
    let whole = call(SHAPES..2 * SHAPES)?;
    ensure!(whole <= half + SLACK, "{SHAPES} shapes more took {half} bytes of the host to {whole}");
    Ok(())
}

#[test]
fn evicted_shapes_leave_no_host_memory_on_the_cpu() -> anyhow::Result<()> {
    isolated(|| assert_bounded(CPU))
}

#[test]
fn evicted_shapes_leave_no_host_memory_on_a_gpu() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        assert_bounded(&device)
    })
}
