//! Optimizers on a GPU, by themselves and in captured steps.

use anyhow::Context;
use candle::{DType, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW};
use opara_candle::ops;
use opara_candle::optim::{AdamW, Schedule};
use opara_candle::{Error, Mode, OparaExecutor, TrainError, Trainer};

use crate::common::precision::{
    assert_averages_follow, assert_losses_are_scaled, assert_mixed_precision, assert_steps_take_several_batches,
};
use crate::common::training::{
    assert_many_variables_are_candles, assert_optimizers_are_candles, assert_optimizers_follow_their_formulas, Guesser,
    Net,
};
use crate::common::{gpu, same_bits, waves};

#[test]
fn optimizers_are_candles() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_optimizers_are_candles(&device)?)
}

#[test]
fn many_variables_are_candles() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_many_variables_are_candles(&device)?)
}

#[test]
fn optimizers_follow_their_formulas() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_optimizers_follow_their_formulas(&device)?)
}

#[test]
fn steps_take_several_batches() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_steps_take_several_batches(&device)?)
}

#[test]
fn averages_follow() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_averages_follow(&device)?)
}

#[test]
fn mixed_precision_has_weights_of_32_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_mixed_precision(&device)?)
}

#[test]
fn losses_are_scaled() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(assert_losses_are_scaled(&device)?)
}

/// Forward, backward, clipping, schedule and AdamW in one graph: losses and weights are those of eager steps, bit for bit, also after the
/// learning rate was set, and from a checkpoint on.
#[test]
fn captured_steps_train_as_eager_ones_do() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let optimizer = |net: &Net| {
        AdamW::new(net.weights.clone(), ParamsAdamW { lr: 0.02, ..Default::default() })?
            .clip_norm(0.5)?
            .schedule(Schedule::Cosine { warm_up: 5, steps: 60, remains: 0.1 })
    };
    for dtype in [DType::F32, DType::BF16] {
        let (eager, captured) = (Net::new(dtype, &device)?, Net::new(dtype, &device)?);
        let mut own = optimizer(&eager)?;
        let net = captured.clone();
        let loss = move |x: &[Tensor]| Ok(vec![net.loss(&x[0], &x[1])?]);
        let mut trainer = OparaExecutor::builder().build_train(loss, &optimizer(&captured)?, &captured.batch(0)?)?;
        let report = trainer.report().context("a captured step has a report")?;
        assert_ne!(report.mode(), Mode::Eager, "{report}");
        captured.assert_same(&eager, "weights after building")?;
        assert_eq!(trainer.optimizer().steps()?, 0);
        let mut both = |from: usize, to: usize, trainer: &mut Trainer<_>| -> anyhow::Result<()> {
            for at in from..to {
                if at == 20 {
                    own.set_learning_rate(0.005);
                    trainer.optimizer().set_learning_rate(0.005);
                }
                let batch = eager.batch(at)?;
                let expected = eager.loss(&batch[0], &batch[1])?;
                own.backward_step(&expected)?;
                let loss = trainer.step(&batch)?;
                assert!(same_bits(&loss, &expected.detach())?, "{dtype:?}, loss of step {at}: {loss} for {expected}");
                captured.assert_same(&eager, format_args!("{dtype:?}, step {at}"))?;
            }
            assert_eq!(trainer.optimizer().latest_rate()?, own.latest_rate()?);
            Ok(())
        };
        both(0, 40, &mut trainer)?;
        let path = folder.path().join("forty");
        trainer.save(&path)?;
        let after = copy_of(&captured)?;
        for at in 0..5 {
            trainer.step(&captured.batch(at)?)?;
        }
        trainer.load(&path)?;
        captured.assert_same(&after, "weights of the checkpoint")?;
        assert_eq!(trainer.optimizer().steps()?, 40);
        both(40, 60, &mut trainer)?;
    }
    Ok(())
}

/// A Transformer by this library's operators, with dropout: captured steps have the bits of eager ones.
#[test]
fn captured_steps_of_own_operators_train_as_eager_ones_do() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::BF16] {
        let (eager, captured) = (Guesser::new(dtype, &device)?, Guesser::new(dtype, &device)?);
        let (mut own, other) = (eager.optimizer()?, captured.optimizer()?);
        let (net, step) = (captured.clone(), other.step_number()?);
        let loss = move |x: &[Tensor]| Ok(vec![net.loss(&x[0], &step)?]);
        let mut trainer = OparaExecutor::builder().build_train(loss, &other, &[captured.batch(0)?])?;
        let report = trainer.report().context("a captured step has a report")?;
        assert_ne!(report.mode(), Mode::Eager, "{report}");
        let mut losses = Vec::new();
        for at in 0..60 {
            let batch = eager.batch(at)?;
            let expected = eager.loss(&batch, &own.step_number()?)?;
            own.backward_step(&expected)?;
            let loss = trainer.step(&[batch])?;
            assert!(same_bits(&loss, &expected.detach())?, "{dtype:?}, loss of step {at}: {loss} for {expected}");
            for (a, b) in captured.weights.iter().zip(&eager.weights) {
                assert!(same_bits(a, b)?, "{dtype:?}, step {at}");
            }
            losses.push(loss.to_scalar::<f32>()?);
        }
        assert!(losses[59] < losses[0] / 2., "{dtype:?}: {losses:?}");
    }
    Ok(())
}

/// A convolution, a pool and a layer by this library's operators.
#[test]
fn captured_steps_of_convolutions_train_as_eager_ones_do() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::BF16] {
        let shapes: [&[usize]; 4] = [&[4, 3, 3, 3], &[4], &[5, 64], &[5]];
        let of = |(at, shape): (usize, &[usize])| {
            Var::from_tensor(&(waves(at, shape)? * 0.3)?.to_dtype(dtype)?.to_device(&device)?)
        };
        let net = || anyhow::Ok(shapes.into_iter().enumerate().map(of).collect::<candle::Result<Vec<_>>>()?);
        let loss = |weights: &[Var], x: &[Tensor]| {
            let config = ops::ConvConfig::default().padding(1).activation(ops::Activation::Relu);
            let y = ops::conv2d(&x[0], &weights[0], Some(&weights[1]), &config)?;
            let y = ops::max_pool2d(&y, &ops::PoolConfig::new(2, 2))?.flatten_from(1)?;
            ops::cross_entropy(&ops::linear(&y, &weights[2], Some(&weights[3]))?, &x[1], Default::default())
        };
        let batch = |at: usize| -> candle::Result<[Tensor; 2]> {
            let classes = Tensor::from_iter((0..6).map(|i| ((i + at) % 5) as u32), &device)?;
            Ok([waves(at, (6, 3, 8, 8))?.to_dtype(dtype)?.to_device(&device)?, classes])
        };
        let (eager, captured) = (net()?, net()?);
        let optimizer = |weights: &[Var]| AdamW::new(weights.to_vec(), ParamsAdamW { lr: 0.01, ..Default::default() });
        let (mut own, other, weights) = (optimizer(&eager)?, optimizer(&captured)?, captured.clone());
        let step = move |x: &[Tensor]| Ok(vec![loss(&weights, x)?]);
        let mut trainer = OparaExecutor::builder().build_train(step, &other, &batch(0)?)?;
        let report = trainer.report().context("a captured step has a report")?;
        assert_ne!(report.mode(), Mode::Eager, "{report}");
        for at in 0..20 {
            let batch = batch(at)?;
            own.backward_step(&loss(&eager, &batch)?)?;
            trainer.step(&batch)?;
            for (a, b) in captured.iter().zip(&eager) {
                assert!(same_bits(a, b)?, "{dtype:?}, step {at}");
            }
        }
    }
    Ok(())
}

/// A net with copies of these weights.
fn copy_of(net: &Net) -> anyhow::Result<Net> {
    let copy = |weight: &Var| Var::from_tensor(&weight.copy()?);
    Ok(Net { weights: net.weights.iter().map(copy).collect::<candle::Result<_>>()? })
}

/// What cannot be trained so is a typed error, and the weights stay.
#[test]
fn steps_that_cannot_be_captured_run_eagerly_or_are_refused() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (net, like) = (Net::new(DType::F32, &device)?, Net::new(DType::F32, &device)?);
    let optimizer = || AdamW::new(net.weights.clone(), ParamsAdamW::default());
    let batch = net.batch(0)?;
    let build = |loss: fn(&Net, &[Tensor]) -> candle::Result<Vec<Tensor>>| -> anyhow::Result<_> {
        let own = net.clone();
        Ok(OparaExecutor::builder().build_train(move |x: &[Tensor]| loss(&own, x), &optimizer()?, &batch))
    };
    let refused = |loss| -> anyhow::Result<TrainError> {
        match build(loss)? {
            Err(Error::Training(error)) => Ok(error),
            Err(error) => Err(error.into()),
            Ok(_) => anyhow::bail!("it was built"),
        }
    };
    assert!(matches!(refused(|_, _| Ok(vec![]))?, TrainError::Loss { got: None }));
    assert!(matches!(refused(|_, x| Ok(vec![x[0].clone()]))?, TrainError::Loss { got: Some(_) }));
    let silent = |net: &Net, x: &[Tensor]| {
        Ok(vec![candle_nn::ops::softmax_last_dim(&x[0].matmul(&net.weights[0].t()?)?)?.sum_all()?])
    };
    assert!(matches!(refused(silent)?, TrainError::Unreached(error) if error.names == ["0", "1", "2", "3"]));
    // It reads the loss back.
    let mut eager = build(|net, x| {
        let loss = net.loss(&x[0], &x[1])?;
        loss.to_scalar::<f32>()?;
        Ok(vec![loss])
    })??;
    net.assert_same(&like, "weights after building")?;
    assert_eq!(eager.report().context("a report")?.mode(), Mode::Eager);
    eager.step(&batch)?;
    AdamW::new(like.weights.clone(), ParamsAdamW::default())?.backward_step(&like.loss(&batch[0], &batch[1])?)?;
    net.assert_same(&like, "weights after a step")?;
    Ok(())
}
