//! What executors leave on a GPU: alone in its program, since others' tests would take memory of the device meanwhile.
//! Without a GPU, or without the `cuda` feature, the test says that it skips.

mod common;

use std::sync::Mutex;

use candle::{Module, Tensor};
use common::gpu;
use opara_candle::{device_memory, Mode, OparaExecutor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Held by each test, since all memory of the process is counted.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn executors_come_and_go_without_growth() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
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
        Ok(device_memory::free_memory(&device)?)
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

/// Bytes of the process that are in memory, those of the driver too, where the system tells.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Kernels that are compiled for a shape are another matter: the launches are candle's.
#[test]
fn a_thousand_shapes_take_the_memory_of_eight() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    let Some(device) = gpu() else { return Ok(()) };
    let weight = Tensor::rand(-1f32, 1., (256, 256), &device)?;
    // A plan keeps a constant of 256 KiB, its outputs, and its graph.
    let module = move |x: &Tensor| x.matmul(&weight.affine(2., 0.)?)?.relu()?.matmul(&weight)?.gelu();
    // The largest first: what all plans share does not grow then.
    let input = |rows: usize| Tensor::rand(-1f32, 1., (rows, 256), &device);
    let fast = OparaExecutor::builder().fuse(false).benchmark_challengers(false).build(module, &input(1_100)?)?;
    let call = |rows: usize| -> anyhow::Result<()> {
        let x = input(rows)?;
        fast.forward(&x)?;
        let report = fast.report_for(&[x])?;
        assert_eq!(report.mode, Mode::Graph, "{report}");
        Ok(())
    };
    let used = || -> anyhow::Result<[usize; 3]> {
        let pool = device_memory::watch(&device, || Ok::<_, opara_candle::Error>(()))?.1.map_or(0, |usage| usage.after);
        Ok([pool as usize, MEMORY.current_usage(), resident()])
    };
    // Both times the eight that are kept at last have about as many bytes of outputs.
    (801..=1_000).try_for_each(call)?;
    let before = used()?;
    (1..=800).chain(1_001..=1_008).try_for_each(call)?;
    let after = used()?;
    let grown: Vec<usize> = after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    let limits = [1 << 20, 1 << 20, 64 << 20];
    let names = ["the pool", "this program's heap", "the process"];
    for ((grown, limit), name) in grown.iter().zip(limits).zip(names) {
        assert!(*grown < limit, "{grown} bytes of {name} after 800 more shapes");
    }
    fast.invalidate();
    let freed = after[0].saturating_sub(used()?[0]);
    assert!(freed > 7 << 18, "{freed} bytes of the pool freed of eight plans");
    Ok(())
}
