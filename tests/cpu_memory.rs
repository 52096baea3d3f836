//! Memory use of executors on the CPU. A program of its own, since it counts all allocations of the process.

mod common;

use std::sync::Mutex;

use candle::{DType, Module, Result, Tensor};
use common::{waves, CPU};
use opara_candle::{ops, Mode, OparaExecutor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Held by each test, since all allocations of the process are counted.
static ALONE: Mutex<()> = Mutex::new(());

/// The peak memory of `f` beyond the memory in use before.
fn peak<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, usize)> {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = f()?;
    Ok((result, MEMORY.peak_usage().saturating_sub(before)))
}

/// A chain of operators, each with a result tensor of its own.
fn chain(x: &Tensor) -> Result<Tensor> {
    (0..40).try_fold(x.clone(), |x, i| ops::affine(&x, 0.9, i as f64))
}

#[test]
fn results_are_freed_after_their_last_use() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    let x = waves(0, (1 << 20,))?;
    let bytes = 4 << 20;
    let (expected, eager) = peak(|| chain(&x))?;
    assert!(eager < 4 * bytes, "eager execution has {} tensors at a time", eager / bytes);
    let (fast, building) = peak(|| OparaExecutor::new(candle_nn::func(chain), &x).map_err(candle::Error::wrap))?;
    // In addition to eager execution: copies of the inputs, and the outputs of two examples.
    assert!(building < 12 * bytes, "building has {} tensors at a time", building / bytes);
    let (got, calling) = peak(|| candle::Module::forward(&fast, &x))?;
    assert!(calling < 4 * bytes, "a call has {} tensors at a time", calling / bytes);
    assert!(common::same_bits(&got, &expected)?);
    Ok(())
}

#[test]
fn memory_is_bounded_by_eight_shapes() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    // A plan holds a constant of 256 KiB, its operators and its schedule.
    let function = |x: &Tensor| {
        let table = ops::constant("table", || Tensor::ones((1, 1 << 16), DType::F32, CPU))?;
        let first = ops::narrow(&table, 1, 0, x.dim(1)?)?;
        ops::add(&chain(x)?, &first)
    };
    let fast = OparaExecutor::new(candle_nn::func(function), &waves(0, (1, 1))?)?;
    let call = |columns: usize| -> anyhow::Result<()> {
        let x = waves(columns, (1, columns))?;
        assert!(common::same_bits(&fast.forward(&x)?, &function(&x)?)?, "{columns} columns");
        let report = fast.report_for(&[x])?;
        assert_eq!(report.mode(), Mode::Threads, "{report}");
        Ok(())
    };
    (1..=100).try_for_each(call)?;
    let before = MEMORY.current_usage();
    (101..=1_000).try_for_each(call)?;
    let grown = MEMORY.current_usage().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes after 900 more shapes");
    let kept = MEMORY.current_usage();
    fast.invalidate();
    let freed = kept.saturating_sub(MEMORY.current_usage());
    assert!(freed > 7 << 18, "{freed} bytes freed of eight plans");
    Ok(())
}
