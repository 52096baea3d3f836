//! Threads that build, call, evict and drop their own executors and borrow their outputs.

use candle::{Module as _, Tensor};
use opara_candle::OparaExecutor;

use crate::modules::{Kind, Module};
use crate::tally::{Seen, Tally};
use crate::world::{read, World};

/// Executors alive at the same time.
const ALIVE: usize = 3;

/// A thread of this role.
pub struct Builds<'a> {
    world: &'a World,
    alive: Vec<(Kind, OparaExecutor)>,
}

impl<'a> Builds<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, alive: Vec::new() }
    }

    /// Builds an executor, calls one with shapes of which it caches two, or drops one.
    pub fn round(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        match rng.u32(..4) {
            0 => self.build(rng, tally),
            _ if self.alive.is_empty() => self.build(rng, tally),
            1 if self.alive.len() >= ALIVE => {
                let dropped = self.alive.swap_remove(rng.usize(..self.alive.len()));
                tally.drop("drop an executor", dropped);
            }
            _ => self.call(rng, tally),
        }
    }

    fn build(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
        let (case, module) = (self.world.case(kind, rng), Module::new(kind, &self.world.weights));
        let builder = OparaExecutor::builder().max_shapes(2);
        let built = match rng.bool() {
            true => tally.time("build", || Ok(builder.build(module, &case.x)?)),
            false => tally.time("build on a thread", || {
                let make = move || Ok(move |x: &[Tensor]| Ok(vec![module.forward(&x[0])?]));
                Ok(builder.build_local(make, std::slice::from_ref(&case.x))?)
            }),
        };
        let Some(executor) = built else { return };
        tally.plan(Seen::Built, kind, &executor.report());
        if self.alive.len() == ALIVE {
            let oldest = self.alive.remove(0);
            tally.drop("drop an executor", oldest);
        }
        self.alive.push((kind, executor));
    }

    fn call(&self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let (kind, executor) = &self.alive[rng.usize(..self.alive.len())];
        let case = self.world.case(*kind, rng);
        let x = std::slice::from_ref(&case.x);
        let expected = &case.expected;
        match rng.bool() {
            true => tally.check("call one's own", expected, || read(&executor.call(x)?[0])),
            false => tally.check("zero-copy, own executor", expected, || {
                executor.call_zero_copy(x, |outputs| read(&outputs[0]))?
            }),
        }
    }
}
