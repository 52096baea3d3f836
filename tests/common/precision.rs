//! Steps over several batches, averages of weights, and weights of 32 bits for models of 16 bits.

use std::collections::HashMap;

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap};
use opara_candle::optim::{AdamW, LossScale, MixedPrecision, ParamsSGD, SGD};

use super::training::Net;
use super::{same_bits, waves};

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Three batches and one step of the mean of their losses are the same step, and nothing moves before the third.
pub fn assert_steps_take_several_batches(device: &Device) -> Result<()> {
    let (parts, whole) = (Net::new(DType::F64, device)?, Net::new(DType::F64, device)?);
    let params = ParamsAdamW { lr: 0.02, ..Default::default() };
    let mut by_parts = AdamW::new(parts.weights.clone(), params.clone())?.clip_norm(0.05)?.accumulate(3)?;
    let mut at_once = AdamW::new(whole.weights.clone(), params)?.clip_norm(0.05)?;
    for step in 0..4 {
        let mut losses = Vec::new();
        for at in 0..3 {
            let [x, y] = parts.batch(3 * step + at)?;
            let before = parts.weights[0].copy()?;
            by_parts.backward_step(&parts.loss(&x, &y)?)?;
            assert_eq!(same_bits(&before, &parts.weights[0])?, at < 2, "step {step}, batch {at}");
            losses.push(whole.loss(&x, &y)?);
        }
        at_once.backward_step(&Tensor::stack(&losses, 0)?.mean_all()?)?;
        for (a, b) in parts.weights.iter().zip(&whole.weights) {
            let apart = largest_difference(a, b)?;
            assert!(apart < 1e-12, "step {step}: {apart}");
        }
        let norms = (by_parts.norm()?.unwrap_or_default(), at_once.norm()?.unwrap_or_default());
        assert!((norms.0 / norms.1 - 1.).abs() < 1e-12, "{norms:?}");
    }
    assert_eq!(by_parts.steps()?, 4);
    Ok(())
}

/// Averages follow their formula, and are exchanged with the weights and back.
pub fn assert_averages_follow(device: &Device) -> Result<()> {
    let net = Net::new(DType::F64, device)?;
    let mut sgd = SGD::new(net.weights.clone(), ParamsSGD::from(0.1))?.average(0.9)?;
    let mut expected = net.weights.iter().map(|weight| weight.copy()).collect::<Result<Vec<_>>>()?;
    for step in 0..5 {
        let [x, y] = net.batch(step)?;
        sgd.backward_step(&net.loss(&x, &y)?)?;
        for (expected, weight) in expected.iter_mut().zip(&net.weights) {
            *expected = ((&*expected * 0.9)? + (weight.as_detached_tensor() * 0.1)?)?;
        }
    }
    let weights = net.weights.iter().map(|weight| weight.copy()).collect::<Result<Vec<_>>>()?;
    for ((name, average), expected) in sgd.averages().zip(&expected) {
        let apart = largest_difference(average, expected)?;
        assert!(apart < 1e-15, "{name}: {apart}");
    }
    let kept: Vec<Tensor> = sgd.averages().map(|(_, average)| average.copy()).collect::<Result<_>>()?;
    sgd.swap_averages()?;
    for (weight, average) in net.weights.iter().zip(&kept) {
        assert!(same_bits(weight, average)?);
    }
    sgd.swap_averages()?;
    for (weight, before) in net.weights.iter().zip(&weights) {
        assert!(same_bits(weight, before)?);
    }
    Ok(())
}

/// Two layers of a builder.
#[derive(Clone)]
pub struct Layers(candle_nn::Linear, candle_nn::Linear);

impl Layers {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self(candle_nn::linear(6, 8, vb.pp("a"))?, candle_nn::linear(8, 3, vb.pp("b"))?))
    }

    /// Of `x`, (5, 6), to `y`, (5, 3).
    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        (self.1.forward(&self.0.forward(x)?.tanh()?)? - y)?.to_dtype(DType::F32)?.sqr()?.mean_all()
    }
}

/// Weights of f32 that are the same at every call, and layers of `dtype` over them.
pub fn mixed_layers(dtype: DType, device: &Device) -> Result<(VarMap, MixedPrecision, Layers)> {
    let weights = VarMap::new();
    let mixed = MixedPrecision::new(&weights, dtype);
    let layers = Layers::new(mixed.var_builder(device))?;
    for (at, (name, variable)) in sorted(&weights).into_iter().enumerate() {
        assert_eq!(variable.dtype(), DType::F32, "{name}");
        weights.data().lock().unwrap()[&name].set(&(waves(at, variable.shape())? * 0.3)?.to_device(device)?)?;
    }
    Ok((weights, mixed, layers))
}

fn sorted(weights: &VarMap) -> Vec<(String, Tensor)> {
    let data = weights.data().lock().unwrap();
    let mut all: Vec<_> = data.iter().map(|(name, v)| (name.clone(), v.as_detached_tensor())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

pub fn batch_of(at: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let of = |at, shape| waves(at, shape)?.to_dtype(dtype)?.to_device(device);
    Ok([of(at, (5, 6))?, of(at + 100, (5, 3))?])
}

/// A model of 16 bits over weights of 32 bits: it computes with the weights rounded, steps that are too short for 16 bits add up, and the loss
/// falls.
pub fn assert_mixed_precision(device: &Device) -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        let (weights, mixed, layers) = mixed_layers(dtype, device)?;
        // 16 bits would round these steps to nothing.
        let mut adam =
            AdamW::of(&weights, ParamsAdamW { lr: 1e-5, weight_decay: 0., ..Default::default() })?.mixed(&mixed)?;
        let [x, y] = batch_of(0, dtype, device)?;
        let losses = |layers: &Layers| layers.loss(&x, &y)?.to_scalar::<f32>();
        let first = losses(&layers)?;
        for _ in 0..200 {
            adam.backward_step(&layers.loss(&x, &y)?)?;
            let rounded: HashMap<String, Tensor> =
                sorted(&weights).into_iter().map(|(name, v)| Ok((name, v.to_dtype(dtype)?))).collect::<Result<_>>()?;
            let plain = Layers::new(VarBuilder::from_tensors(rounded, dtype, device))?;
            assert!(same_bits(&layers.loss(&x, &y)?.detach(), &plain.loss(&x, &y)?)?, "{dtype:?}");
        }
        assert!(losses(&layers)? < first, "{dtype:?}: {first} to {}", losses(&layers)?);
        // Averages and exchanged weights reach the copies, too.
        weights.data().lock().unwrap()["b.bias"].set(&Tensor::zeros(3, DType::F32, device)?)?;
        mixed.refresh()?;
        let vb = mixed.var_builder(device);
        assert_eq!(vb.get(3, "b.bias")?.to_dtype(DType::F32)?.to_vec1::<f32>()?, [0.; 3]);
    }
    Ok(())
}

/// Losses of f16 are scaled: gradients that would vanish arrive, infinite ones are left out, and the factor follows.
pub fn assert_losses_are_scaled(device: &Device) -> Result<()> {
    let (weights, mixed, layers) = mixed_layers(DType::F16, device)?;
    let scale = LossScale { first: 2f64.powi(40), growth_steps: 3 };
    let mut sgd = SGD::of(&weights, 1e-3.into())?.mixed(&mixed)?.scale_loss(scale)?;
    let [x, y] = batch_of(0, DType::F16, device)?;
    let before = sorted(&weights).into_iter().map(|(_, v)| v.copy()).collect::<Result<Vec<_>>>()?;
    sgd.backward_step(&layers.loss(&x, &y)?)?;
    assert_eq!((sgd.steps()?, sgd.skipped()?, sgd.loss_scale()?), (0, 1, 2f64.powi(39)), "gradients are infinite");
    for ((name, weight), before) in sorted(&weights).iter().zip(&before) {
        assert!(same_bits(weight, before)?, "{name}");
    }
    while sgd.steps()? == 0 {
        sgd.backward_step(&layers.loss(&x, &y)?)?;
    }
    let (held, skipped) = (sgd.loss_scale()?, sgd.skipped()?);
    for _ in 0..2 {
        sgd.backward_step(&(layers.loss(&x, &y)? * 1e-3)?)?;
    }
    assert_eq!((sgd.loss_scale()?, sgd.skipped()?), (2. * held, skipped), "three good steps");
    // A loss whose gradients are below the least f16: with a factor they arrive.
    let tiny = |layers: &Layers| layers.loss(&x, &y)? * 2e-9;
    let gradients = tiny(&layers)?.backward()?;
    let bias = &weights.data().lock().unwrap()["a.bias"].clone();
    let largest = |of: &Tensor| of.abs()?.max(0)?.to_scalar::<f32>();
    assert_eq!(largest(gradients.get(bias).expect("a gradient"))?, 0.);
    let (value, rate) = (bias.copy()?, 1e6);
    sgd.set_learning_rate(rate);
    sgd.backward_step(&tiny(&layers)?)?;
    let moved = largest(&(bias.as_detached_tensor() - value)?)? as f64 / rate;
    assert!(moved > 1e-11 && moved < 1e-8, "moved by {moved}");
    Ok(())
}
