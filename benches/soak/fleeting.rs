//! Short-lived threads with tensors and library handles in their thread-locals.

use std::thread;

use anyhow::{anyhow, Result};
use candle::Module as _;

use crate::modules::{convolve, Kind, Module};
use crate::tally::Tally;
use crate::world::{read, World};

/// One in this many threads runs a convolution. candle creates a cuDNN handle for each thread that does, and each
/// handle leaks 66 KiB of host memory (two modules that it loads; cuDNN 9.17, driver 580).
const CONVOLVES_ONE_IN: u32 = 256;

/// Starts a thread, lets it work, and joins it.
pub fn round(world: &World, rng: &mut fastrand::Rng, tally: &mut Tally) {
    let seed = rng.u64(..);
    let convolves = rng.u32(..CONVOLVES_ONE_IN) == 0;
    let works = || WORK.iter().filter(|(kind, _)| convolves || *kind != Kind::Convolution);
    let expected = || {
        let mut rng = fastrand::Rng::with_seed(seed);
        works().flat_map(|(kind, _)| world.case(*kind, &mut rng).expected.clone()).collect::<Vec<_>>()
    };
    tally.check("a thread's life", &expected(), || {
        thread::scope(|scope| {
            let life = scope.spawn(|| -> Result<Vec<f32>> {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut numbers = Vec::new();
                for (kind, work) in works() {
                    numbers.extend(work(world, &world.case(*kind, &mut rng).x)?);
                }
                Ok(numbers)
            });
            // Joined explicitly: a scope alone does not wait until the thread's thread-locals are dropped.
            life.join().map_err(|_| anyhow!("the thread panicked"))?
        })
    });
}

type Work = fn(&World, &candle::Tensor) -> Result<Vec<f32>>;

/// The work of such a thread, with the kind of module that gives the expected output.
const WORK: [(Kind, Work); 4] = [
    // The first tensor that the thread creates is its own table.
    (Kind::Masked, |world, x| read(&Module::new(Kind::Masked, &world.weights).forward(x)?)),
    (Kind::Convolution, |world, x| read(&convolve(x, &world.weights)?)),
    (Kind::Masked, |world, x| shared(world, Kind::Masked, x)),
    (Kind::ReadsBack, |world, x| shared(world, Kind::ReadsBack, x)),
];

/// Calls the executor that all threads share.
fn shared(world: &World, kind: Kind, x: &candle::Tensor) -> Result<Vec<f32>> {
    let shared = world.shared.iter().find(|shared| shared.kind == kind).ok_or_else(|| anyhow!("no such executor"))?;
    read(&shared.executor.forward(x)?)
}
