//! Synthetic results for the tests of this crate.

use fastrand::Rng;

use crate::results::{Cell, Contestant, Key, Machine, Measured, Outcome, Results, Run, Series};

/// Calls per turn.
pub const TURN: usize = 10;

/// A contestant whose samples are all `us`, with twice that as wall time.
pub fn measured(name: &str, us: f64) -> Contestant {
    sampled(name, &[us; 100])
}

/// A contestant with these samples of GPU time; wall times are twice as long.
pub fn sampled(name: &str, us: &[f64]) -> Contestant {
    let wall_us = us.iter().map(|us| 2. * us).collect();
    let series = Series { gpu_us: us.to_vec(), wall_us, host_us: us.to_vec() };
    let measured = Measured { warm: series.clone(), flushed: series, ..Measured::default() };
    Contestant { name: name.into(), outcome: Outcome::Measured(Box::new(measured)) }
}

/// Samples around `us`: turns deviate by up to the fraction `spread`, and so do the samples within each turn.
pub fn noisy(us: f64, spread: f64, turns: usize, seed: u64) -> Vec<f64> {
    // Neighbouring seeds would give the generator correlated states.
    let mut rng = Rng::with_seed(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut off = move || 1. + spread * (2. * rng.f64() - 1.);
    let mut turn = |_| {
        let us = us * off();
        [(); TURN].map(|()| us * off())
    };
    (0..turns).flat_map(&mut turn).collect()
}

/// A contestant that could not run.
pub fn failed(name: &str, reason: &str) -> Contestant {
    Contestant { name: name.into(), outcome: Outcome::Failed(reason.into()) }
}

/// A cell with these contestants.
pub fn cell(model: &str, dtype: &str, batch: usize, contestants: impl Into<Vec<Contestant>>) -> Cell {
    let key = Key { model: model.into(), dtype: dtype.into(), batch };
    Cell { key, contestants: contestants.into() }
}

/// One run.
pub fn results(cells: impl Into<Vec<Cell>>) -> Results {
    Results::new(vec![Run { machine: Machine::default(), turn: TURN, cells: cells.into() }])
}
