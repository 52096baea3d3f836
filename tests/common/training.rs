//! A network that trains, and optimizers held against candle's and against their formulas.

use candle::{DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW};
use opara_candle::ops;
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

/// More variables than a launch takes, of two dtypes and of sizes that vectors and blocks do not divide: candle's bits, and the norm of
/// all their gradients.
pub fn assert_many_variables_are_candles(device: &Device) -> Result<()> {
    let sizes = (0..150).map(|at| at * at * 3 % 211 + 1).chain([16_384 * 3 + 5, 70_000, 2_048]);
    let of = |(at, size): (usize, usize)| {
        let dtype = if at % 3 == 0 { DType::BF16 } else { DType::F32 };
        waves(at, size)?.to_dtype(dtype)?.to_device(device)
    };
    let start = sizes.enumerate().map(of).collect::<Result<Vec<_>>>()?;
    let variables = || start.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>();
    let (ours, candles) = (variables()?, variables()?);
    let params = ParamsAdamW { lr: 0.01, weight_decay: 0.1, ..Default::default() };
    let a = AdamW::new(ours.clone(), params.clone())?.clip_norm(1e9)?;
    let mut b = candle_nn::AdamW::new(candles.clone(), params)?;
    for step in 0..4 {
        let loss = |variables: &[Var]| {
            let of = |(at, v): (usize, &Var)| {
                let slopes = waves(at + step, v.elem_count())?.to_dtype(v.dtype())?.to_device(device)?;
                (v.as_tensor() * slopes)?.sum_all()?.to_dtype(DType::F32)
            };
            let parts = variables.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&parts, 0)?.sum_all()
        };
        let gradients = loss(&ours)?.backward()?;
        let squares = |v: &Var| match gradients.get(v) {
            Some(g) => g.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>(),
            None => Ok(0.),
        };
        let norm = ours.iter().map(squares).sum::<Result<f64>>()?.sqrt();
        a.update(&gradients)?;
        b.backward_step(&loss(&candles)?)?;
        for (at, (a, b)) in ours.iter().zip(&candles).enumerate() {
            assert!(same_bits(a, b)?, "step {step}, variable {at} of {} elements", a.elem_count());
        }
        let got = a.norm()?.unwrap_or_default();
        assert!((got / norm - 1.).abs() < 1e-12, "a norm of {got} for {norm}");
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

/// A layer of a Transformer that guesses the next token, by this library's operators.
#[derive(Clone)]
pub struct Guesser {
    pub weights: Vec<Var>,
    mask: Tensor,
}

impl Guesser {
    const TOKENS: usize = 11;
    const WIDTH: usize = 16;

    pub fn new(dtype: DType, device: &Device) -> Result<Self> {
        const W: usize = Guesser::WIDTH;
        let shapes: [&[usize]; 9] =
            [&[Self::TOKENS, W], &[W], &[W], &[3 * W, W], &[3 * W], &[W, W], &[4 * W, W], &[4 * W], &[W, 4 * W]];
        let of = |(at, shape): (usize, &[usize])| {
            let start = (waves(at, shape)? * 0.3)? + if at == 1 { 1. } else { 0. };
            Var::from_tensor(&start?.to_dtype(dtype)?.to_device(device)?)
        };
        let hidden = (0..64).map(|at| if at % 8 > at / 8 { f32::NEG_INFINITY } else { 0. });
        let mask = Tensor::from_iter(hidden, &Device::Cpu)?.reshape((8, 8))?.to_dtype(dtype)?.to_device(device)?;
        Ok(Self { weights: shapes.into_iter().enumerate().map(of).collect::<Result<_>>()?, mask })
    }

    /// Of the token behind each of `tokens`, (2, 9).
    pub fn loss(&self, tokens: &Tensor, step: &Tensor) -> Result<Tensor> {
        let [table, scale, shift, qkv, qkv_bias, out, up, up_bias, down] = &self.weights[..] else { unreachable!() };
        let (given, wanted) = (tokens.narrow(1, 0, 8)?.contiguous()?, tokens.narrow(1, 1, 8)?.contiguous()?);
        let x = ops::embedding(table, &given)?;
        let heads = ops::linear(&ops::layer_norm(&x, scale, shift, 1e-5)?, qkv, Some(qkv_bias))?;
        let part = |at| ops::split_heads(&heads.narrow(2, at * Self::WIDTH, Self::WIDTH)?.contiguous()?, None, 2, 1.);
        let attended = ops::attention(&part(0)?, &part(1)?, &part(2)?, Some(&self.mask), 0.35)?;
        let attended = ops::linear(&ops::merge_heads(&attended)?, out, None)?;
        let x = (x + ops::dropout(&attended, ops::Dropout { part: 0.1, seed: 3, site: 0 }, step)?)?;
        let inner = ops::linear_act(&ops::rms_norm(&x, scale, 1e-5)?, up, Some(up_bias), ops::Activation::Gelu)?;
        let x = (x + ops::linear(&inner, down, None)?)?;
        let logits = ops::linear(&x, table, None)?;
        ops::cross_entropy(&logits, &wanted, ops::CrossEntropy { ignored: Some(0), smoothing: 0.05 })
    }

    /// Counts in circles, from another token each time.
    pub fn batch(&self, at: usize) -> Result<Tensor> {
        let device = self.weights[0].device();
        Tensor::from_iter((0..18).map(|i| ((at + i % 9 + 5 * (i / 9)) % Self::TOKENS) as u32), device)?.reshape((2, 9))
    }

    pub fn optimizer(&self) -> Result<AdamW> {
        AdamW::new(self.weights.clone(), ParamsAdamW { lr: 0.01, ..Default::default() })?.clip_norm(1.)
    }
}
