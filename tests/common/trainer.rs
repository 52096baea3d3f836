//! Trainers, held against eager steps.

use std::path::Path;

use anyhow::{Context, Result};
use candle::{DType, Device, Module, Tensor};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap};
use opara_candle::optim::{AdamW, LossScale, ParamsSGD, SGD};
use opara_candle::{Builder, Error, Mode, OparaExecutor, TrainError};

use super::precision::{batch_of, mixed_layers};
use super::training::Net;
use super::{same_bits, waves};

fn adam(net: &Net) -> candle::Result<AdamW> {
    AdamW::new(net.weights.clone(), ParamsAdamW { lr: 0.02, ..Default::default() })?.clip_norm(0.5)
}

/// A batch of so many rows.
fn rows(net: &Net, at: usize, count: usize) -> candle::Result<Vec<Tensor>> {
    let [x, y] = net.batch(at)?;
    Ok(vec![x.narrow(0, 0, count)?, y.narrow(0, 0, count)?])
}

/// Batches of several shapes train the same weights and moments, with metrics, over several batches a step.
pub fn assert_shapes_share_weights(device: &Device) -> Result<()> {
    let (net, eager) = (Net::new(DType::F32, device)?, Net::new(DType::F32, device)?);
    let optimizer = adam(&net)?.accumulate(2)?;
    let mut own = adam(&eager)?.accumulate(2)?;
    let loss = {
        let net = net.clone();
        move |x: &[Tensor]| Ok(vec![net.loss(&x[0], &x[1])?, x[0].sum_all()?])
    };
    let mut trainer = OparaExecutor::builder().build_train(loss, &optimizer, &rows(&net, 0, 5)?)?;
    for at in 0..24 {
        let batch = rows(&eager, at, [5, 3, 5, 2][at % 4])?;
        let expected = eager.loss(&batch[0], &batch[1])?;
        own.backward_step(&expected)?;
        let outputs = trainer.step_with_metrics(&batch)?;
        assert!(same_bits(&outputs[0], &expected.detach())?, "loss {at}");
        assert!(same_bits(&outputs[1], &batch[0].sum_all()?)?, "metric {at}");
        net.assert_same(&eager, format_args!("batch {at}"))?;
    }
    assert_eq!(trainer.optimizer().steps()?, 12);
    if device.is_cuda() {
        assert_ne!(trainer.report().context("a report")?.mode(), Mode::Eager);
    }
    Ok(())
}

/// What an executor of the same weights gives is what they give: at once where it reads them, and after `invalidate` where it has computed
/// something of them alone.
pub fn assert_evaluation_follows(device: &Device, builder: fn() -> Builder) -> Result<()> {
    let weights = VarMap::new();
    let layer = candle_nn::linear(6, 3, VarBuilder::from_varmap(&weights, DType::F32, device))?;
    let (own, doubled) = (layer.clone(), layer.clone());
    let optimizer = SGD::of(&weights, ParamsSGD { momentum: 0.9, ..0.1.into() })?;
    let [x, y] = batch_of(0, DType::F32, device)?;
    let loss = move |x: &[Tensor]| Ok(vec![(layer.forward(&x[0])? - &x[1])?.sqr()?.mean_all()?]);
    let mut trainer = builder().build_train(loss, &optimizer, &[x.clone(), y.clone()])?;
    let forward = move |x: &[Tensor]| Ok(vec![own.forward(&x[0])?.detach()]);
    let reads = OparaExecutor::builder().build_fn(forward.clone(), std::slice::from_ref(&x))?;
    let folds = move |x: &[Tensor]| Ok(vec![x[0].matmul(&(doubled.weight().t()? * 2.)?)?.detach()]);
    let folded = OparaExecutor::builder().build_fn(folds.clone(), std::slice::from_ref(&x))?;
    for step in 0..3 {
        trainer.step(&[x.clone(), y.clone()])?;
        let inputs = std::slice::from_ref(&x);
        assert!(same_bits(&reads.call(inputs)?[0], &forward(inputs)?[0])?, "step {step}");
        folded.invalidate();
        assert!(same_bits(&folded.call(inputs)?[0], &folds(inputs)?[0])?, "step {step}, folded");
    }
    Ok(())
}

/// A model of 16 bits over weights of 32 bits trains in a trainer as in eager steps; 12 steps are 7, a checkpoint, and 5.
pub fn assert_mixed_trains(device: &Device, folder: &Path, builder: fn() -> Builder) -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        let make = || -> Result<_> {
            let (weights, mixed, layers) = mixed_layers(dtype, device)?;
            let params = ParamsAdamW { lr: 0.01, ..Default::default() };
            let scale = LossScale { first: 1024., growth_steps: 5 };
            let optimizer = AdamW::of(&weights, params)?.mixed(&mixed)?.scale_loss(scale)?.average(0.9)?;
            let own = layers.clone();
            let loss = move |x: &[Tensor]| Ok(vec![own.loss(&x[0], &x[1])?]);
            let trainer = builder().build_train(loss, &optimizer, &batch_of(0, dtype, device)?)?;
            Ok((weights, layers, trainer))
        };
        let (whole, layers, mut first) = make()?;
        let path = folder.join(format!("{dtype:?}"));
        let (mut begin, mut end) = (f32::NAN, f32::NAN);
        for at in 0..12 {
            if at == 7 {
                first.save(&path)?;
            }
            let batch = batch_of(at % 2, dtype, device)?;
            let expected = layers.loss(&batch[0], &batch[1])?.to_scalar::<f32>()?;
            end = first.step(&batch)?.to_scalar()?;
            assert!((end / expected - 1.).abs() < 0.02, "{dtype:?}, step {at}: {end} for {expected}");
            if at == 0 {
                begin = end;
            }
        }
        assert!(end < begin, "{dtype:?}: {begin} to {end}");
        assert_eq!((first.optimizer().steps()?, first.optimizer().loss_scale()?), (12, 4096.), "{dtype:?}");
        let (resumed, _, mut second) = make()?;
        second.load(&path)?;
        for at in 7..12 {
            second.step(&batch_of(at % 2, dtype, device)?)?;
        }
        let (whole, resumed) = (whole.data().lock().unwrap(), resumed.data().lock().unwrap());
        for (name, variable) in whole.iter() {
            assert!(same_bits(variable, &resumed[name])?, "{dtype:?}: {name}");
        }
        for ((name, a), (_, b)) in first.optimizer().averages().zip(second.optimizer().averages()) {
            assert!(same_bits(a, b)?, "{dtype:?}: average of {name}");
        }
    }
    Ok(())
}

/// What a trainer cannot train with is a typed error, and leaves the weights.
pub fn assert_faults_are_typed(device: &Device) -> Result<()> {
    let (net, like) = (Net::new(DType::F32, device)?, Net::new(DType::F32, device)?);
    let optimizer = adam(&net)?;
    let loss = |net: &Net| {
        let net = net.clone();
        move |x: &[Tensor]| Ok(vec![net.loss(&x[0], &x[1])?])
    };
    let train =
        |optimizer: &AdamW, batch: &[Tensor]| OparaExecutor::builder().build_train(loss(&net), optimizer, batch);
    let mut trainer = train(&optimizer, &rows(&net, 0, 5)?)?;
    let error = |of: opara_candle::Result<Tensor>| match of {
        Err(Error::Training(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a step was taken"),
    };
    for dtype in [DType::F64, DType::BF16, DType::U32] {
        let batch: Vec<Tensor> = rows(&net, 0, 5)?.iter().map(|t| t.to_dtype(dtype)).collect::<candle::Result<_>>()?;
        assert!(matches!(error(trainer.step(&batch)), TrainError::Batch { got, .. } if got[0].1 == dtype));
    }
    assert!(matches!(error(trainer.step(&rows(&net, 0, 5)?[..1])), TrainError::Batch { got, .. } if got.len() == 1));
    // A shape that the loss does not take.
    let [x, y] = net.batch(0)?;
    assert!(matches!(trainer.step(&[x.narrow(0, 0, 2)?, y.clone()]), Err(Error::Candle(_))));
    // Another optimizer of the same weights; clones are one optimizer.
    let other = AdamW::of_named(vec![("own".into(), net.weights[1].clone())], ParamsAdamW::default())?;
    let shared = |of: &AdamW| match train(of, &rows(&net, 0, 5)?) {
        Err(Error::Training(TrainError::Shared { names })) => Ok::<_, anyhow::Error>(Some(names)),
        result => Ok(result.map(|_| None)?),
    };
    assert_eq!(shared(&other)?, Some(vec!["own".to_string()]));
    assert_eq!(shared(&optimizer.clone())?, None);
    net.assert_same(&like, "weights")?;
    assert_eq!(trainer.optimizer().steps()?, 0);
    drop(trainer);
    let lost = train(&other, &rows(&net, 0, 5)?);
    assert!(lost.is_ok(), "the other trainer is gone");
    // Frozen weights stay, and the others move.
    drop(lost);
    let named: Vec<_> = net.weights.iter().enumerate().map(|(at, w)| (format!("w.{at}"), w.clone())).collect();
    let mut trainer = train(&AdamW::of_named(named, ParamsAdamW::default())?.freeze("w.[01]")?, &rows(&net, 0, 5)?)?;
    trainer.step(&[waves(3, (5, 6))?.to_device(device)?, y])?;
    for (at, (a, b)) in net.weights.iter().zip(&like.weights).enumerate() {
        assert_eq!(same_bits(a, b)?, at < 2, "weight {at}");
    }
    Ok(())
}
