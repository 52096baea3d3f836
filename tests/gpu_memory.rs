//! Memory that executors leave on a GPU. A program of its own, since other tests would allocate device memory
//! meanwhile. Tests skip without a GPU or the feature `cuda`, and say so.

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
fn building_and_dropping_executors_leaks_nothing() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    let Some(device) = gpu() else { return Ok(()) };
    let weight = Tensor::rand(-1f32, 1., (256, 256), &device)?;
    let module = move |x: &Tensor| x.matmul(&weight)?.relu()?.matmul(&weight)?.gelu();
    let x = Tensor::rand(-1f32, 1., (64, 256), &device)?;
    let build = || -> anyhow::Result<()> {
        let fast = OparaExecutor::new(module.clone(), &x)?;
        assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
        fast.forward(&x)?;
        device.synchronize()?;
        Ok(())
    };
    let free_after = |builds| -> anyhow::Result<usize> {
        (0..builds).try_for_each(|_| build())?;
        Ok(device_memory::free_memory(&device)?)
    };
    // Other programs also use memory of the device: a leak would take memory in every round.
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

/// Resident bytes of the process, including the driver's, if the system reports them.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Without fusion: compiled kernels are counted elsewhere.
#[test]
fn memory_is_bounded_by_eight_shapes() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    let Some(device) = gpu() else { return Ok(()) };
    let weight = Tensor::rand(-1f32, 1., (256, 256), &device)?;
    // A plan holds a constant of 256 KiB, its outputs, and its graph.
    let module = move |x: &Tensor| x.matmul(&weight.affine(2., 0.)?)?.relu()?.matmul(&weight)?.gelu();
    // The largest shape first, so that memory shared by all plans does not grow later.
    let input = |rows: usize| Tensor::rand(-1f32, 1., (rows, 256), &device);
    let fast = OparaExecutor::builder().fuse(false).benchmark_challengers(false).build(module, &input(1_100)?)?;
    let call = |rows: usize| -> anyhow::Result<()> {
        let x = input(rows)?;
        fast.forward(&x)?;
        let report = fast.report_for(&[x])?;
        assert_eq!(report.mode(), Mode::Graph, "{report}");
        Ok(())
    };
    let used = || -> anyhow::Result<[usize; 3]> {
        let pool = device_memory::watch(&device, || Ok::<_, opara_candle::Error>(()))?.1.map_or(0, |usage| usage.after);
        Ok([pool as usize, MEMORY.current_usage(), resident()])
    };
    // At both measurements, the eight plans that are kept last have about the same output bytes.
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
