//! Trainers on the CPU.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

use candle::{DType, Device, Tensor, Var};
use opara_candle::optim::SGD;
use opara_candle::{Error, OparaExecutor, TrainError};

use crate::common::trainer::{
    assert_evaluation_follows, assert_faults_are_typed, assert_mixed_trains, assert_shapes_share_weights,
};
use crate::common::waves;

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

/// Closures that panic, fail, or give something else than a loss, while building and later, and while they write to variables.
#[test]
fn losses_that_fail_are_typed() -> anyhow::Result<()> {
    type Loss = fn(&Tensor, &Tensor) -> candle::Result<Vec<Tensor>>;
    type IsRight = fn(&Error) -> bool;
    let good: Loss = |w, x| Ok(vec![(w * x)?.sum_all()?]);
    let is_panic: IsRight = |error| matches!(error, Error::Panicked { message } if message == "a fault");
    let is_loss: IsRight = |error| matches!(error, Error::Training(TrainError::Loss { .. }));
    let cases: [(Loss, IsRight); 5] = [
        (|_, _| panic!("a fault"), is_panic),
        (|_, _| candle::bail!("a fault"), |error| matches!(error, Error::Candle(_))),
        (|w, x| Ok(vec![(w * x)?]), is_loss),
        (|w, _| Ok(vec![w.sum_all()?.to_dtype(DType::U32)?]), is_loss),
        (|_, _| Ok(Vec::new()), is_loss),
    ];
    for (at, (bad, is_right)) in cases.into_iter().enumerate() {
        for good_calls in [0, 2] {
            let w = Var::from_tensor(&waves(0, 4)?)?;
            let before = w.to_vec1::<f32>()?;
            let optimizer = SGD::of_named(vec![("w".into(), w.clone())], 0.1.into())?;
            let (own, calls) = (w.clone(), Arc::new(AtomicUsize::new(0)));
            let loss = move |x: &[Tensor]| match calls.fetch_add(1, Relaxed) {
                call if call < good_calls => good(&own, &x[0]),
                _ => {
                    own.set(&(own.as_detached_tensor() + 1.)?)?;
                    bad(&own, &x[0])
                }
            };
            let batch = [waves(1, 4)?];
            let built = OparaExecutor::builder().build_train(loss, &optimizer, &batch);
            let error = match built {
                Ok(mut trainer) => {
                    trainer.step(&batch)?;
                    trainer.step(&batch).expect_err("the loss fails")
                }
                Err(error) => {
                    assert_eq!(w.to_vec1::<f32>()?, before, "loss {at}");
                    error
                }
            };
            assert!(is_right(&error), "loss {at} after {good_calls} good ones: {error:?}");
            assert_eq!(optimizer.steps()?, (good_calls as u64).min(1));
        }
    }
    Ok(())
}

#[test]
fn optimizers_of_nothing_are_errors() -> anyhow::Result<()> {
    let w = Var::from_tensor(&waves(0, 4)?)?;
    let frozen = SGD::of_named(vec![("w".into(), w.clone())], 0.1.into())?.freeze("w")?;
    for optimizer in [frozen, SGD::of_named(Vec::new(), 0.1.into())?] {
        let own = w.clone();
        let loss = move |x: &[Tensor]| Ok(vec![(own.as_tensor() * &x[0])?.sum_all()?]);
        let built = OparaExecutor::builder().build_train(loss, &optimizer, &[waves(1, 4)?]);
        assert!(matches!(built.err(), Some(Error::Training(TrainError::Nothing))));
    }
    Ok(())
}

#[test]
fn candles_backward_pass_has_no_segments() -> anyhow::Result<()> {
    let w = Var::from_tensor(&waves(0, 4)?)?;
    let optimizer = SGD::of_named(vec![("w".into(), w.clone())], 0.1.into())?;
    let loss = move |x: &[Tensor]| Ok(vec![(w.as_tensor() * &x[0])?.sum_all()?]);
    let built = OparaExecutor::builder().train_memory(1 << 30).build_train(loss, &optimizer, &[waves(1, 4)?]);
    assert!(matches!(built.err(), Some(Error::Training(TrainError::NoSegments))));
    Ok(())
}
