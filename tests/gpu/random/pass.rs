//! A forward pass that is drawn at random: every pass of one seed draws the same.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use candle::{DType, Device, Result, Shape, Tensor, Var};
use fastrand::Rng;
use parking_lot::Mutex;

/// What all passes of a module share.
pub struct Weights {
    seed: u64,
    dtype: DType,
    device: Device,
    /// In the order in which passes ask for them, each once more in double precision on the CPU.
    made: Mutex<Vec<[Tensor; 2]>>,
    /// The places of those that a model would train.
    trained: Mutex<BTreeSet<usize>>,
    /// What the module is made of, as the first pass told.
    pub said: OnceLock<String>,
}

impl Weights {
    /// None yet.
    pub fn new(seed: u64, dtype: DType, device: &Device) -> Self {
        let (made, trained) = (Mutex::new(Vec::new()), Mutex::new(BTreeSet::new()));
        Self { seed, dtype, device: device.clone(), made, trained, said: OnceLock::new() }
    }

    /// Makes variables of the weights that passes have asked for. Names are places.
    pub fn train(&self) -> Result<Vec<(String, Var)>> {
        let mut made = self.made.lock();
        let variable = |&at: &usize| {
            let variable = Var::from_tensor(&made[at][0])?;
            made[at][0] = variable.as_tensor().clone();
            Ok((at.to_string(), variable))
        };
        self.trained.lock().iter().map(variable).collect()
    }

    /// Moves a weight in double precision, and gives what it was.
    pub fn move_double(&self, place: usize, by: &Tensor) -> Result<Tensor> {
        let mut made = self.made.lock();
        let moved = (&made[place][1] + by)?;
        Ok(std::mem::replace(&mut made[place][1], moved))
    }

    /// Puts a weight in double precision back.
    pub fn put_double(&self, place: usize, weight: Tensor) {
        self.made.lock()[place][1] = weight;
    }

    /// The tensor of a place, which `make` makes at the first pass.
    fn get(&self, at: usize, in_double: bool, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let mut made = self.made.lock();
        if at == made.len() {
            let tensor = make()?;
            let wide = if tensor.dtype().is_float() { tensor.to_dtype(DType::F64)? } else { tensor.clone() };
            made.push([tensor.to_device(&self.device)?, wide]);
        }
        Ok(made[at][usize::from(in_double)].clone())
    }
}

/// One pass.
pub struct Pass<'a> {
    pub rng: Rng,
    weights: &'a Weights,
    /// Weights that it has asked for.
    asked: usize,
    /// Is it the pass in double precision on the CPU?
    pub in_double: bool,
    /// Integers of each item of a batch: how many of its tokens count.
    pub lengths: Tensor,
    /// The type of scores, if it is not the pass in double precision.
    pub scores_in: DType,
    /// What it is made of.
    pub said: Vec<String>,
}

impl<'a> Pass<'a> {
    /// Of a module.
    pub fn new(weights: &'a Weights, in_double: bool, lengths: Tensor) -> Self {
        let rng = Rng::with_seed(weights.seed);
        Self { rng, weights, asked: 0, in_double, lengths, scores_in: weights.dtype, said: Vec::new() }
    }

    /// Notes a choice.
    pub fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    /// The same, noted by its name.
    pub fn named(&mut self, of: &[&'static str]) -> &'static str {
        let name = self.one_of(of);
        self.say(name);
        name
    }

    /// Is true once in `times` calls, on average.
    pub fn is_once_in(&mut self, times: usize) -> bool {
        self.rng.usize(..times) == 0
    }

    /// The module's type, or f64.
    pub fn own(&self) -> DType {
        if self.in_double {
            DType::F64
        } else {
            self.weights.dtype
        }
    }

    /// The module's type.
    pub fn module_dtype(&self) -> DType {
        self.weights.dtype
    }

    /// f32, or f64.
    pub fn wide(&self) -> DType {
        if self.in_double {
            DType::F64
        } else {
            DType::F32
        }
    }

    /// Where the pass runs.
    pub fn device(&self) -> &Device {
        if self.in_double {
            &Device::Cpu
        } else {
            &self.weights.device
        }
    }

    /// A random weight in the module's type, of this standard deviation.
    pub fn weight(&mut self, shape: impl Into<Shape>, deviation: f64) -> Result<Tensor> {
        let (shape, dtype, seed) = (shape.into(), self.weights.dtype, self.weights.seed);
        let at = self.asked;
        self.weights.trained.lock().insert(at);
        self.constant(|| {
            let numbers = noise(seed.wrapping_mul(1009).wrapping_add(at as u64), shape.elem_count());
            let numbers = numbers.into_iter().map(|x| x * deviation).collect();
            Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
        })
    }

    /// A tensor that the module holds, made once on the CPU.
    pub fn constant(&mut self, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        self.asked += 1;
        self.weights.get(self.asked - 1, self.in_double, make)
    }

    /// `x @ w + b`, with or without `b`, for the last dimension.
    pub fn linear(&mut self, x: &Tensor, out: usize, has_bias: bool) -> Result<Tensor> {
        let of = x.dim(candle::D::Minus1)?;
        let weight = self.weight((out, of), 1. / (of as f64).sqrt())?;
        let bias = if has_bias { Some(self.weight(out, 0.3)?) } else { None };
        candle::Module::forward(&candle_nn::Linear::new(weight, bias), x)
    }
}

/// Random numbers of mean 0 and variance 1, nearly normal.
pub fn noise(seed: u64, len: usize) -> Vec<f64> {
    let mut rng = Rng::with_seed(seed);
    let mut number = || ((0..6).map(|_| rng.f64()).sum::<f64>() - 3.) * std::f64::consts::SQRT_2;
    (0..len).map(|_| number()).collect()
}
