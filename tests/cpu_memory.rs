//! Memory that an executor on the CPU takes: alone in its process, whose allocations are counted.

mod common;

use candle::{Result, Tensor};
use common::waves;
use opara_candle::{ops, OparaExecutor};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

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
