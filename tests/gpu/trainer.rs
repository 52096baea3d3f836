//! Trainers on a GPU, whose steps are captured.

use candle::{DType, Result, Tensor};
use candle_nn::{Optimizer, ParamsAdamW};
use opara_candle::optim::AdamW;
use opara_candle::{Error, Numerics, OnUncapturable, OparaExecutor};

use crate::common::gpu;
use crate::common::trainer::{
    assert_evaluation_follows, assert_faults_are_typed, assert_mixed_trains, assert_shapes_share_weights,
};
use crate::common::training::Net;

fn accurate() -> opara_candle::Builder {
    OparaExecutor::builder().numerics(Numerics::Accurate)
}

#[test]
fn shapes_share_weights() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_shapes_share_weights(&device))
}

#[test]
fn evaluation_follows() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    assert_evaluation_follows(&device, OparaExecutor::builder)?;
    assert_evaluation_follows(&device, accurate)
}

#[test]
fn mixed_precision_trains() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for builder in [OparaExecutor::builder, accurate] {
        assert_mixed_trains(&device, tempfile::tempdir()?.path(), builder)?;
    }
    Ok(())
}

#[test]
fn faults_are_typed() -> anyhow::Result<()> {
    gpu().map_or(Ok(()), |device| assert_faults_are_typed(&device))
}

/// Steps that read the loss back, branch on it, or draw numbers by candle are no graphs, and leave the weights.
#[test]
fn steps_that_are_no_graphs_are_errors() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (net, like) = (Net::new(DType::F32, &device)?, Net::new(DType::F32, &device)?);
    let batch = net.batch(0)?;
    let optimizer = AdamW::new(net.weights.clone(), ParamsAdamW::default())?;
    type Loss = fn(&Net, &[Tensor]) -> Result<Tensor>;
    let losses: [(&str, Loss); 3] = [
        ("reads", |net, x| {
            let loss = net.loss(&x[0], &x[1])?;
            loss.to_scalar::<f32>()?;
            Ok(loss)
        }),
        ("branches", |net, x| {
            let loss = net.loss(&x[0], &x[1])?;
            if loss.to_scalar::<f32>()? > 0.1 {
                return loss * 2.;
            }
            Ok(loss)
        }),
        ("draws", |net, x| net.loss(&(&x[0] + x[0].rand_like(0., 0.1)?)?, &x[1])),
    ];
    for (name, loss) in losses {
        for builder in [OparaExecutor::builder(), accurate()] {
            let own = net.clone();
            let step = move |x: &[Tensor]| Ok(vec![loss(&own, x)?]);
            let built = builder.on_uncapturable(OnUncapturable::Error).build_train(step, &optimizer, &batch);
            let error = built.err();
            println!("{name}: {error:?}");
            let is_typed = !matches!(error, None | Some(Error::Candle(_) | Error::Internal { .. }));
            assert!(is_typed, "{name}: {error:?}");
            net.assert_same(&like, name)?;
        }
    }
    assert_eq!(optimizer.steps()?, 0);
    Ok(())
}
