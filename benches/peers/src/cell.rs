//! One cell: contestants are prepared one after another, and then measured in turns.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use candle::Tensor;
use clap::builder::RangedU64ValueParser;
use opara_examples::relative_error;
use opara_peers::results::{Contestant, Measured, Outcome};

use crate::gpu::Gpu;
use crate::way::{Ready, Way};

/// Time for which the GPU's counters are read, and time that a contestant runs before: the counters lag by a tenth of a
/// second.
const WATCHED: Duration = Duration::from_millis(150);
const BEFORE: Duration = Duration::from_millis(150);

/// Number and length of turns; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Turns {
    /// Measured calls of each contestant, once with a flush of the L2 cache before each call and once without.
    #[arg(long, default_value_t = 300, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub calls: usize,

    /// Calls of a contestant per turn.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub turn: u16,

    /// Seconds after which a contestant gets no more turns in a series; slow ones make fewer calls.
    #[arg(long, default_value_t = 3.)]
    pub seconds: f64,
}

/// The contestants of a cell, in the order of their turns.
pub struct Benchmark {
    /// The eager output on this library's operators.
    expected: Tensor,
    /// Maximum difference from it, relative to its largest value.
    tolerance: f32,
    entrants: Vec<Entrant>,
}

struct Entrant {
    name: String,
    state: Result<(Box<dyn Way>, Measured)>,
}

impl Benchmark {
    /// A measurement without contestants.
    pub fn new(expected: Tensor, tolerance: f32) -> Self {
        Self { expected, tolerance, entrants: Vec::new() }
    }

    /// Enters a contestant. If it is not ready, or its output is wrong, that is its outcome.
    pub fn enter(&mut self, name: String, ready: Result<Ready>) {
        let state = ready.and_then(|ready| self.checked(ready));
        match &state {
            Ok((_, measured)) => eprintln!("    {name}: ready in {:.1} s", measured.setup_s),
            Err(error) => eprintln!("    {name}: {error:#}"),
        }
        self.entrants.push(Entrant { name, state });
    }

    fn checked(&self, ready: Ready) -> Result<(Box<dyn Way>, Measured)> {
        let error = relative_error(&ready.output, &self.expected)?;
        let tolerance = self.tolerance;
        ensure!(error <= tolerance, "the output differs by {error:.1e} of the largest value; {tolerance:.0e} may be");
        let measured = Measured {
            note: ready.note,
            setup_s: ready.setup_s,
            peak_bytes: ready.peak_bytes,
            error: error.into(),
            ..Measured::default()
        };
        Ok((ready.way, measured))
    }

    /// Measures all contestants in turns.
    pub fn run(&mut self, turns: &Turns) {
        /// Seed of the turn order, so that it is the same in every run.
        const SEED: u64 = 1;
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut order: Vec<usize> = (0..self.entrants.len()).collect();
        for flush in [false, true] {
            let rounds = turns.calls.div_ceil(turns.turn.into());
            let mut spent = vec![Duration::ZERO; self.entrants.len()];
            for _ in 0..rounds {
                // Shuffle the order each round, so that the heat and cache contents that one contestant leaves affect
                // all others equally. With a fixed order, the contestant after the busiest one ran at a lower clock: up
                // to 7 % slower for the same kernels.
                random.shuffle(&mut order);
                for &at in &order {
                    if spent[at].as_secs_f64() < turns.seconds {
                        let began = Instant::now();
                        self.entrants[at].turn(turns.turn.into(), flush);
                        spent[at] += began.elapsed();
                    }
                }
            }
        }
    }

    /// Reads the GPU's counters while each contestant runs.
    pub fn watch(&mut self, gpu: &Gpu) {
        for Entrant { state, .. } in &mut self.entrants {
            let Ok((way, measured)) = state else { continue };
            let watched = std::thread::scope(|scope| {
                let watching = scope.spawn(|| {
                    std::thread::sleep(BEFORE);
                    gpu.utilization(WATCHED)
                });
                way.spin(BEFORE + WATCHED)?;
                watching.join().unwrap_or_else(|_| anyhow::bail!("the reader of the counters panicked"))
            });
            // Not every GPU has such counters, and not every machine allows reading them.
            measured.utilization = watched.ok();
        }
    }

    /// Times the kernels of the contestants. Later calls may be slower.
    pub fn profile(&mut self) {
        for Entrant { name, state } in &mut self.entrants {
            let Ok((way, measured)) = state else { continue };
            match way.kernels() {
                Ok(kernels) => measured.kernels = kernels,
                Err(error) => eprintln!("    {name}: no times of kernels: {error:#}"),
            }
        }
    }

    /// The outcomes of all contestants.
    pub fn outcomes(self) -> Vec<Contestant> {
        let outcome = |state: Result<(_, Measured)>| match state {
            Ok((_, measured)) => Outcome::Measured(Box::new(measured)),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        self.entrants.into_iter().map(|Entrant { name, state }| Contestant { name, outcome: outcome(state) }).collect()
    }
}

impl Entrant {
    fn turn(&mut self, calls: usize, flush: bool) {
        let Ok((way, measured)) = &mut self.state else { return };
        let series = if flush { &mut measured.flushed } else { &mut measured.warm };
        match way.turn(calls, flush) {
            Ok(turn) => series.append(turn),
            Err(error) => self.state = Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use anyhow::bail;
    use candle::Device;
    use opara_peers::results::{Kernel, Series};

    use super::*;

    /// Records its turns, takes some time for each, and fails after some.
    struct Noted {
        name: &'static str,
        log: Rc<RefCell<Vec<(&'static str, bool)>>>,
        fails_after: usize,
    }

    impl Way for Noted {
        fn turn(&mut self, calls: usize, flush: bool) -> Result<Series> {
            self.log.borrow_mut().push((self.name, flush));
            let turns = self.log.borrow().iter().filter(|(name, _)| *name == self.name).count();
            if turns > self.fails_after {
                bail!("out of memory")
            }
            Ok(Series { gpu_us: vec![1.; calls], wall_us: vec![2.; calls], host_us: vec![3.; calls] })
        }

        fn spin(&mut self, _: Duration) -> Result<()> {
            Ok(())
        }

        fn kernels(&mut self) -> Result<Vec<Kernel>> {
            Ok(vec![Kernel { name: self.name.into(), calls: 1., us: 1. }])
        }
    }

    fn ready(way: Noted, output: f32) -> Result<Ready> {
        let output = Tensor::new(&[output], &Device::Cpu)?;
        Ok(Ready { way: Box::new(way), output, setup_s: 0., peak_bytes: None, note: None })
    }

    const TURNS: Turns = Turns { calls: 6, turn: 2, seconds: 60. };

    #[test]
    fn contestants_take_turns_and_failures_are_reported() -> Result<()> {
        let log = Rc::default();
        let way = |name, fails_after| Noted { name, log: Rc::clone(&log), fails_after };
        let expected = Tensor::new(&[1f32], &Device::Cpu)?;
        let mut benchmark = Benchmark::new(expected, 1e-3);
        benchmark.enter("a".into(), ready(way("a", 99), 1.));
        benchmark.enter("wrong".into(), ready(way("wrong", 99), 1.1));
        benchmark.enter("b".into(), ready(way("b", 99), 1.));
        benchmark.enter("ends".into(), ready(way("ends", 1), 1.));
        benchmark.enter("absent".into(), Err(anyhow::anyhow!("not installed")));
        benchmark.run(&TURNS);
        benchmark.profile();
        let turns = |flush, times: [usize; 3]| {
            let turns = log.borrow().iter().filter(|turn| turn.1 == flush).map(|turn| turn.0).collect::<Vec<_>>();
            let mut rounds = turns.as_slice();
            for round in 0..3 {
                let measured = if times[2] > round { vec!["a", "b", "ends"] } else { vec!["a", "b"] };
                let (now, later) = rounds.split_at(measured.len());
                assert!(measured.iter().all(|name| now.contains(name)), "not {measured:?} in {now:?}, of {turns:?}");
                rounds = later;
            }
            assert_eq!(["a", "b", "ends"].map(|name| turns.iter().filter(|turn| **turn == name).count()), times);
        };
        turns(false, [3, 3, 2]);
        turns(true, [3, 3, 0]);
        let outcomes = benchmark.outcomes();
        let told = outcomes.iter().map(|contestant| match &contestant.outcome {
            Outcome::Measured(measured) => {
                format!("{}: {}, {} kernels", contestant.name, measured.flushed.wall_us.len(), measured.kernels.len())
            }
            Outcome::Failed(error) => format!("{}: {error}", contestant.name),
        });
        let wrong = "wrong: the output differs by 1.0e-1 of the largest value; 1e-3 may be";
        let expected = ["a: 6, 1 kernels", wrong, "b: 6, 1 kernels", "ends: out of memory", "absent: not installed"];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        Ok(())
    }

    #[test]
    fn a_contestant_out_of_time_gets_no_more_turns() -> Result<()> {
        let log = Rc::default();
        let expected = Tensor::new(&[1f32], &Device::Cpu)?;
        let mut benchmark = Benchmark::new(expected, 1e-3);
        benchmark.enter("a".into(), ready(Noted { name: "a", log: Rc::clone(&log), fails_after: 99 }, 1.));
        benchmark.run(&Turns { seconds: f64::MIN_POSITIVE, ..TURNS });
        assert_eq!(*log.borrow(), [("a", false), ("a", true)]);
        Ok(())
    }
}
