//! Threads that call the shared executors with changing shapes.

use crate::tally::{Seen, Tally};
use crate::world::{read, World};

/// The maximal number of outputs kept for a later check.
const KEPT: usize = 16;

/// A thread of this role.
pub struct Calls<'a> {
    world: &'a World,
    /// Earlier outputs with their expected values.
    kept: Vec<(candle::Tensor, &'a [f32])>,
}

impl<'a> Calls<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, kept: Vec::new() }
    }

    /// Calls an executor, borrows its outputs, checks an earlier output, or reads the report of the last call.
    pub fn round(&mut self, rng: &mut fastrand::Rng, tally: &mut Tally) {
        let shared = &self.world.shared[rng.usize(..self.world.shared.len())];
        let (case, executor) = (self.world.case(shared.kind, rng), &shared.executor);
        let x = std::slice::from_ref(&case.x);
        match rng.u32(..16) {
            0..8 => tally.check("call, read back", &case.expected, || read(&executor.call(x)?[0])),
            8 | 9 => tally.check("zero-copy, read back", &case.expected, || {
                executor.call_zero_copy(x, |outputs| read(&outputs[0]))?
            }),
            10..13 => {
                let answer = tally.time("call", || Ok(executor.call(x)?.remove(0)));
                self.kept.extend(answer.map(|answer| (answer, &case.expected[..])));
                if self.kept.len() > KEPT {
                    let dropped = self.kept.swap_remove(rng.usize(..self.kept.len()));
                    tally.drop("drop an answer", dropped);
                }
            }
            13 => {
                let report = tally.time("report", || match executor.report_for(x) {
                    // Another thread builds: there is no report yet.
                    Err(opara_candle::Error::Building) => Ok(None),
                    report => Ok(Some(report?)),
                });
                let report = report.flatten();
                report.iter().for_each(|report| tally.plan(Seen::Used, shared.kind, report));
            }
            _ if self.kept.is_empty() => (),
            _ => {
                let (answer, expected) = &self.kept[rng.usize(..self.kept.len())];
                tally.check("read back an earlier answer", expected, || read(answer));
            }
        }
    }
}
