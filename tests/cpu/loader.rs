//! Batches ahead of their steps, on the CPU.

use candle::{DType, Device, Module, Tensor};
use candle_nn::{ParamsAdamW, VarBuilder, VarMap};
use opara_candle::optim::{AdamW, CheckpointError};
use opara_candle::{Loader, OparaExecutor};

use crate::common::loader::{assert_batches_follow_their_order, assert_faults_arrive};
use crate::common::same_bits;

#[test]
fn batches_follow_their_order() -> anyhow::Result<()> {
    assert_batches_follow_their_order(&Device::Cpu)
}

#[test]
fn faults_arrive() -> anyhow::Result<()> {
    assert_faults_arrive(&Device::Cpu)
}

/// Twenty batches are twelve, a checkpoint, and eight of another process, which goes on with the batches, too.
#[test]
fn a_checkpoint_has_the_position() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("twelve");
    let rows = |rows: &[usize]| {
        let x = Tensor::from_iter(rows.iter().map(|&row| row as f32 / 30.), &Device::Cpu)?.reshape(((), 1))?;
        Ok(vec![x.clone(), x.sin()?])
    };
    let loader = |seed| Loader::new(30, 4, &Device::Cpu, rows).shuffle(seed);
    let make = || -> anyhow::Result<_> {
        let weights = VarMap::new();
        let layer = candle_nn::linear(1, 1, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
        for (_, variable) in weights.data().lock().unwrap().iter() {
            variable.set(&variable.ones_like()?)?;
        }
        let optimizer = AdamW::of(&weights, ParamsAdamW { lr: 0.1, ..Default::default() })?;
        let loss = move |x: &[Tensor]| Ok(vec![candle_nn::loss::mse(&layer.forward(&x[0])?, &x[1])?]);
        let example = loader(5).next().expect("no end")?;
        Ok((weights, OparaExecutor::builder().build_train(loss, &optimizer, &example)?))
    };
    let ((whole, mut first), mut batches) = (make()?, loader(5));
    for step in 0..20 {
        if step == 12 {
            first.save_with(&path, &batches)?;
        }
        first.step(&batches.next().expect("no end")?)?;
    }
    let ((resumed, mut second), mut batches) = (make()?, loader(5));
    for error in [second.load_with(&path, &mut loader(6)).err(), {
        first.save(folder.path().join("plain"))?;
        second.load_with(folder.path().join("plain"), &mut batches).err()
    }] {
        assert!(matches!(error, Some(CheckpointError::Loader { .. })), "{error:?}");
    }
    second.load_with(&path, &mut batches)?;
    assert_eq!(batches.position(), 12);
    for _ in 12..20 {
        second.step(&batches.next().expect("no end")?)?;
    }
    let (whole, resumed) = (whole.data().lock().unwrap(), resumed.data().lock().unwrap());
    for (name, variable) in whole.iter() {
        assert!(same_bits(variable, &resumed[name])?, "{name}");
    }
    Ok(())
}
