//! Trainers on a GPU, whose steps are captured.

use std::sync::Arc;

use candle::{DType, Result, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW};
use opara_candle::optim::AdamW;
use opara_candle::{Error, Numerics, OnUncapturable, OparaExecutor, TrainError};
use parking_lot::Mutex;

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

#[test]
fn memory_that_nobody_trains_is_read_where_it_lies() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let numbers = |by: f64| Tensor::arange(0f32, 4096., &device)?.affine(by / 4096., -0.3)?.reshape((64, 64));
    let weight = Var::from_tensor(&numbers(1.)?)?;
    let base = Arc::new(Mutex::new(numbers(0.7)?));
    let own = (weight.clone(), base.clone());
    let loss = move |x: &[Tensor]| {
        let base = own.1.lock().clone();
        Ok(vec![x[0].matmul(&base)?.matmul(own.0.as_tensor())?.sqr()?.mean_all()?])
    };
    let optimizer = AdamW::of_named(vec![("weight".into(), weight)], ParamsAdamW { lr: 0., ..Default::default() })?;
    let x = numbers(0.4)?;
    let mut trainer = accurate().build_train(loss, &optimizer, std::slice::from_ref(&x))?;
    let first = trainer.step(std::slice::from_ref(&x))?.to_scalar::<f32>()?;
    // Twice the numbers, in the same memory.
    base.lock().slice_set(&numbers(0.7)?.affine(2., 0.)?, 0, 0)?;
    let second = trainer.step(std::slice::from_ref(&x))?.to_scalar::<f32>()?;
    assert!((second / first - 4.).abs() < 1e-3, "{second} after {first}");
    // Other memory, so that the recorded one is freed.
    *base.lock() = numbers(0.2)?;
    let error = trainer.step(&[x]).expect_err("the memory was freed");
    assert!(error.to_string().contains("frees memory"), "{error}");
    Ok(())
}

/// 24 layers of 64 columns with sums around them, of 4,096 rows.
struct Deep {
    optimizer: AdamW,
    weights: Vec<(String, Var)>,
    batch: [Tensor; 1],
}

impl Deep {
    fn new(device: &candle::Device) -> anyhow::Result<Self> {
        let weight = |at: usize| -> Result<(String, Var)> {
            let numbers = Tensor::arange(0f32, 4096., device)?.affine(1.3 + at as f64, 0.1)?.sin()?;
            Ok((format!("{at:02}"), Var::from_tensor(&(numbers * 0.1)?.reshape((64, 64))?)?))
        };
        let weights = (0..24).map(weight).collect::<Result<Vec<_>>>()?;
        let optimizer = AdamW::of_named(weights.clone(), ParamsAdamW { lr: 1e-3, ..Default::default() })?;
        let batch = [Tensor::arange(0f32, 4096. * 64., device)?.sin()?.reshape((4096, 64))?];
        Ok(Self { optimizer, weights, batch })
    }

    fn build(&self, limit: Option<u64>) -> opara_candle::Result<opara_candle::Trainer<ParamsAdamW>> {
        let weights = self.weights.clone();
        let loss = move |x: &[Tensor]| {
            let mut y = x[0].clone();
            for (_, weight) in &weights {
                y = (&y + y.matmul(weight.as_tensor())?.gelu()?.tanh()?)?;
            }
            Ok(vec![y.sqr()?.mean_all()?])
        };
        let builder = limit.into_iter().fold(accurate(), opara_candle::Builder::train_memory);
        builder.benchmark_challengers(false).build_train(loss, &self.optimizer, &self.batch)
    }
}

#[test]
fn steps_in_segments_take_less_memory_and_keep_their_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (all, less) = (Deep::new(&device)?, Deep::new(&device)?);
    let bytes = |trainer: &opara_candle::Trainer<_>| trainer.report().map_or(0, |report| report.counts().arena_bytes);
    let mut whole = all.build(None)?;
    let limit = bytes(&whole) / 2;
    let mut parts = less.build(Some(limit))?;
    println!("{} bytes, in {} segments {}", bytes(&whole), parts.segments(&less.batch)?, bytes(&parts));
    assert!(bytes(&parts) <= limit);
    assert_eq!((whole.segments(&all.batch)?, parts.segments(&less.batch)? > 1), (1, true));
    for step in 0..5 {
        let [expected, got] = [whole.step(&all.batch)?, parts.step(&less.batch)?].map(|loss| loss.to_scalar::<f32>());
        assert_eq!(expected?, got?, "step {step}");
    }
    for ((name, expected), (_, got)) in all.weights.iter().zip(&less.weights) {
        assert!(crate::common::same_bits(expected, got)?, "weight {name}");
    }
    // No segments are so small. The weights stay.
    drop(parts);
    let error = less.build(Some(1 << 20)).err();
    assert!(
        matches!(error, Some(Error::Training(TrainError::Memory { needed, limit })) if needed > limit),
        "{error:?}"
    );
    assert!(crate::common::same_bits(&all.weights[0].1, &less.weights[0].1)?);
    Ok(())
}
