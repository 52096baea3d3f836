//! A network that trains, and optimizers held against candle's and against their formulas.

use candle::{DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW};
use opara_candle::optim::{AdamW, Fused, Params, ParamsAdam, ParamsLion, ParamsSGD, SGD};

use super::{same_bits, waves};

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Two layers; their losses are of `x`, (5, 6), to `y`, (5, 3).
#[derive(Clone)]
pub struct Net {
    pub weights: Vec<Var>,
}

impl Net {
    pub fn new(dtype: DType, device: &Device) -> Result<Self> {
        let shapes = [&[8, 6][..], &[8], &[3, 8], &[3]];
        let of = |(at, shape)| Var::from_tensor(&waves(at, shape)?.to_dtype(dtype)?.to_device(device)?);
        Ok(Self { weights: shapes.into_iter().enumerate().map(of).collect::<Result<_>>()? })
    }

    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let [a, a_bias, b, b_bias] = &self.weights[..] else { unreachable!() };
        let h = x.matmul(&a.t()?)?.broadcast_add(a_bias)?.tanh()?;
        (h.matmul(&b.t()?)?.broadcast_add(b_bias)? - y)?.sqr()?.mean_all()
    }

    /// A batch.
    pub fn batch(&self, at: usize) -> Result<[Tensor; 2]> {
        let like = |i, shape| waves(i, shape)?.to_dtype(self.weights[0].dtype())?.to_device(self.weights[0].device());
        Ok([like(at, (5, 6))?, like(at + 100, (5, 3))?])
    }

    pub fn assert_same(&self, other: &Self, of: impl std::fmt::Display) -> Result<()> {
        for (at, (a, b)) in self.weights.iter().zip(&other.weights).enumerate() {
            assert!(same_bits(a, b)?, "{of}: weight {at}:\n{a}\nis not\n{b}");
        }
        Ok(())
    }
}

/// Twenty steps of both on nets of their own. The learning rate changes between them.
fn trained_alike<A: Optimizer, B: Optimizer>(
    dtype: DType,
    device: &Device,
    make: (impl Fn(Vec<Var>) -> Result<A>, impl Fn(Vec<Var>) -> Result<B>),
) -> Result<()> {
    let (ours, candles) = (Net::new(dtype, device)?, Net::new(dtype, device)?);
    let (mut a, mut b) = (make.0(ours.weights.clone())?, make.1(candles.weights.clone())?);
    for step in 0..20 {
        if step == 10 {
            a.set_learning_rate(0.003);
            b.set_learning_rate(0.003);
            assert_eq!(a.learning_rate(), 0.003);
        }
        let [x, y] = ours.batch(step)?;
        a.backward_step(&ours.loss(&x, &y)?)?;
        b.backward_step(&candles.loss(&x, &y)?)?;
        ours.assert_same(&candles, format_args!("{dtype:?}, step {step}"))?;
    }
    Ok(())
}

/// Weights are candle's after each of twenty steps, bit for bit.
pub fn assert_optimizers_are_candles(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        let params = ParamsAdamW { lr: 0.02, weight_decay: 0.1, ..Default::default() };
        let make = (|v| AdamW::new(v, params.clone()), |v| candle_nn::AdamW::new(v, params.clone()));
        trained_alike(dtype, device, make)?;
        trained_alike(dtype, device, (|v| SGD::new_lr(v, 0.05), |v| candle_nn::SGD::new(v, 0.05)))?;
    }
    Ok(())
}

/// Ten steps from one value on, in f64, beside a formula of value, gradient, moments and step.
fn follows<P: Params>(device: &Device, params: P, formula: impl Fn(&mut f64, f64, &mut [f64; 2], i32)) -> Result<()> {
    let value = Var::from_tensor(&Tensor::new(&[0.7f64], device)?)?;
    let (mut optimizer, mut expected, mut moments) = (Fused::new(vec![value.clone()], params)?, 0.7, [0.; 2]);
    for step in 1..=10 {
        let slope = (f64::from(step) * 1.7).sin();
        optimizer.backward_step(&(value.as_tensor() * slope)?.sum_all()?)?;
        formula(&mut expected, slope, &mut moments, step);
        let got = value.to_vec1::<f64>()?[0];
        assert!((got - expected).abs() < 1e-14, "step {step}: {got} for {expected}");
    }
    Ok(())
}

/// What candle has no optimizer for follows PyTorch's formulas.
pub fn assert_optimizers_follow_their_formulas(device: &Device) -> Result<()> {
    for is_nesterov in [false, true] {
        let params = ParamsSGD { lr: 0.1, momentum: 0.9, is_nesterov, weight_decay: 0.01 };
        follows(device, params, move |p, g, [m, _], _| {
            let g = g + 0.01 * *p;
            *m = 0.9 * *m + g;
            *p -= 0.1 * if is_nesterov { g + 0.9 * *m } else { *m };
        })?;
    }
    let params = ParamsAdam { lr: 0.1, weight_decay: 0.01, ..Default::default() };
    follows(device, params, |p, g, [m, v], step| {
        let g = g + 0.01 * *p;
        (*m, *v) = (0.9 * *m + 0.1 * g, 0.999 * *v + 0.001 * g * g);
        let (m, v) = (*m / (1. - 0.9f64.powi(step)), *v / (1. - 0.999f64.powi(step)));
        *p -= 0.1 * m / (v.sqrt() + 1e-8);
    })?;
    follows(device, ParamsLion { lr: 0.1, weight_decay: 0.01, ..Default::default() }, |p, g, [m, _], _| {
        let by = 0.9 * *m + 0.1 * g;
        *p = *p * (1. - 0.1 * 0.01) - 0.1 * by.signum();
        *m = 0.99 * *m + 0.01 * g;
    })?;
    Ok(())
}
