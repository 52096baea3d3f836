//! Memory that an executor on the CPU takes: alone in its process, whose allocations are counted.

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

/// The most that `f` has at a time beyond what there is before.
fn peak<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, usize)> {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = f()?;
    Ok((result, MEMORY.peak_usage().saturating_sub(before)))
}

/// Operators one after the other, each of which leaves a tensor of its own.
fn chain(x: &Tensor) -> Result<Tensor> {
    (0..40).try_fold(x.clone(), |x, i| ops::affine(&x, 0.9, i as f64))
}

#[test]
fn results_live_no_longer_than_they_are_needed() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    let x = waves(0, (1 << 20,))?;
    let bytes = 4 << 20;
    let (expected, eager) = peak(|| chain(&x))?;
    assert!(eager < 4 * bytes, "eager execution has {} tensors at a time", eager / bytes);
    let (fast, building) = peak(|| OparaExecutor::new(candle_nn::func(chain), &x).map_err(candle::Error::wrap))?;
    // Beside those of eager execution: inputs of its own, and outputs on two examples.
    assert!(building < 12 * bytes, "building has {} tensors at a time", building / bytes);
    let (got, calling) = peak(|| candle::Module::forward(&fast, &x))?;
    assert!(calling < 4 * bytes, "a call has {} tensors at a time", calling / bytes);
    assert!(common::same_bits(&got, &expected)?);
    Ok(())
}

#[test]
fn a_thousand_shapes_take_the_memory_of_eight() -> anyhow::Result<()> {
    let _alone = ALONE.lock();
    // A plan keeps a constant of 256 KiB, its operators and its schedule.
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
        assert_eq!(report.mode, Mode::Threads, "{report}");
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
