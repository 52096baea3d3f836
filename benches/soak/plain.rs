//! Threads of plain candle code, independent of the executors.

use std::collections::VecDeque;

use anyhow::Result;
use candle::{Module as _, Tensor};

use crate::modules::{Kind, Module, WIDTH};
use crate::tally::Tally;
use crate::world::{read, World};

/// The maximal number of tensors kept for a later check.
const KEPT: usize = 32;

/// A thread of this role.
pub struct Plain<'a> {
    world: &'a World,
    /// Earlier tensors with their expected values.
    kept: VecDeque<(Tensor, Vec<f32>)>,
}

impl<'a> Plain<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, kept: VecDeque::new() }
    }

    /// Does one random operation of plain candle code.
    pub fn round(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        match rng.u32(..8) {
            0 | 1 => self.upload(rng, tally),
            2 => self.keep(rng, tally),
            3 => self.read_kept(rng, tally),
            4 => self.allocate(rng, tally),
            5 => self.draw(tally),
            6 => self.eager("eager products and softmax", Kind::Plain, rng, tally),
            _ => self.eager("eager convolution", Kind::Convolution, rng, tally),
        }
    }

    fn upload(&self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let numbers = numbers(rng);
        tally.check("upload, read back", &numbers, || {
            Ok(Tensor::from_vec(numbers.clone(), numbers.len(), &self.world.device)?.to_vec1()?)
        });
    }

    fn keep(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let numbers = numbers(rng);
        let made = tally.time("upload", || Ok(Tensor::from_slice(&numbers, numbers.len(), &self.world.device)?));
        self.kept.extend(made.map(|tensor| (tensor, numbers)));
        if self.kept.len() > KEPT {
            let oldest = self.kept.pop_front();
            tally.drop("drop", oldest);
        }
    }

    fn read_kept(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        if self.kept.is_empty() {
            return;
        }
        let (tensor, numbers) = &self.kept[rng.usize(..self.kept.len())];
        tally.check("read back what was kept", numbers, || Ok(tensor.to_vec1()?));
    }

    fn allocate(&self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let count = 1 << rng.u32(6..18);
        let value = rng.u32(..1000) as f32;
        // Each value is twice a whole number, plus one.
        tally.check("allocate, fill, compute, drop", &[2. * value + 1.; 2], || {
            let filled = Tensor::full(value, count, &self.world.device)?.affine(2., 1.)?;
            let ends = [filled.narrow(0, 0, 1)?, filled.narrow(0, count - 1, 1)?];
            Ok(Tensor::cat(&ends, 0)?.to_vec1()?)
        });
    }

    /// Draws random numbers. They are correct if they are in their range.
    fn draw(&self, tally: &mut Tally) {
        tally.check("draw", &[1.; WIDTH], || {
            let drawn = Tensor::rand(1f32, 2., WIDTH, &self.world.device)?.to_vec1::<f32>()?;
            Ok(drawn.into_iter().map(|v| if (1. ..=2.).contains(&v) { 1. } else { v }).collect())
        });
    }

    fn eager(&self, name: &'static str, kind: Kind, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let case = self.world.case(kind, rng);
        let module = Module::new(kind, &self.world.weights);
        tally.check(name, &case.expected, || -> Result<_> { read(&module.forward(&case.x)?) });
    }
}

/// Random numbers, of a random count.
fn numbers(rng: &mut fastrand::Rng) -> Vec<f32> {
    let (count, first) = (rng.usize(1..20_000), rng.u32(..1 << 20));
    (first..).take(count).map(|i| i as f32).collect()
}
