//! Statistics of samples.

use fastrand::Rng;
use serde::Serialize;

/// Number of bootstrap draws of [`interval`]; its ends are the 25th and the 975th of 1000.
const DRAWS: usize = 1000;

/// Minimum turns per side for [`interval`]. In simulations, intervals of 6 turns miss the true ratio in 8 of 100 cases,
/// intervals of 4 turns in 16, and intervals of many turns in 5.
pub const MIN_TURNS: usize = 6;

/// A fixed number, so that the same files always give the same verdicts.
const SEED: u64 = 0x6f70_6172;

/// Samples of one contestant in the order in which they were taken.
#[derive(Debug, Clone, Copy)]
pub struct Turns<'a> {
    /// In microseconds, or any unit that both sides of a comparison share.
    pub samples: &'a [f64],
    /// Samples per turn; 0 counts as 1.
    pub turn: usize,
}

/// A confidence interval of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The `q`-quantile of the samples, `q` from 0 to 1, interpolated between neighbours; `None` without samples.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let last = samples.len().checked_sub(1)?;
    let mut samples = samples.to_vec();
    let at = q.clamp(0., 1.) * last as f64;
    let (_, &mut low, above) = samples.select_nth_unstable_by(at as usize, f64::total_cmp);
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    Some(low + (high - low) * at.fract())
}

/// The median; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// `a / b`, if both are comparable times: finite and above 0.
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    [a, b].iter().all(|us| us.is_finite() && *us > 0.).then_some(a / b)
}

/// A 95 % confidence interval of the ratio of two medians, `over / under`, by the block bootstrap.
///
/// Samples of one turn are correlated: they share clocks, caches, and other activity. So each draw resamples whole
/// turns with replacement, as many as each side has, and computes the ratio of the two medians. 95 % of 1000 draws are
/// in the interval. It describes these two series only: differences between processes, such as the placement of a graph
/// in memory, are in neither series.
///
/// `None` with fewer than [`MIN_TURNS`] turns on either side, or without a [`ratio`].
pub fn interval(over: Turns, under: Turns) -> Option<Interval> {
    let [over, under] = [over, under].map(|side| side.samples.chunks(side.turn.max(1)).collect::<Vec<_>>());
    if over.len().min(under.len()) < MIN_TURNS {
        return None;
    }
    let mut rng = Rng::with_seed(SEED);
    let mut drawn = Vec::new();
    let mut draw = |turns: &[&[f64]]| {
        drawn.clear();
        turns.iter().for_each(|_| drawn.extend_from_slice(turns[rng.usize(..turns.len())]));
        median(&drawn)
    };
    let ratios = (0..DRAWS).map(|_| ratio(draw(&over)?, draw(&under)?)).collect::<Option<Vec<f64>>>()?;
    Some(Interval { low: quantile(&ratios, 0.025)?, high: quantile(&ratios, 0.975)? })
}

impl Interval {
    /// Is `ratio` inside?
    pub fn contains(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{noisy, TURN};

    fn of_noise(over: f64, seed: u64) -> Interval {
        let [over, under] = [noisy(over, 0.03, 15, 2 * seed), noisy(100., 0.03, 15, 2 * seed + 1)];
        interval(Turns { samples: &over, turn: TURN }, Turns { samples: &under, turn: TURN }).unwrap()
    }

    #[test]
    fn quantiles() {
        let samples = [4., 1., 3., 2.];
        assert_eq!(median(&samples), Some(2.5));
        assert_eq!(quantile(&samples, 0.), Some(1.));
        assert_eq!(quantile(&samples, 1.), Some(4.));
        assert_eq!(quantile(&(0..=100).map(f64::from).collect::<Vec<_>>(), 0.99), Some(99.));
        assert_eq!(median(&[7.]), Some(7.));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn ratios_of_times_only() {
        assert_eq!(ratio(3., 2.), Some(1.5));
        for (a, b) in [(0., 1.), (1., 0.), (0., 0.), (f64::NAN, 1.), (1., f64::INFINITY)] {
            assert_eq!(ratio(a, b), None, "{a} / {b}");
        }
    }

    #[test]
    fn a_change_of_five_percent_is_detected_in_noise_of_three() {
        for seed in 0..20 {
            let (slower, faster) = (of_noise(105., seed), of_noise(95., seed));
            assert!(slower.low > 1. && faster.high < 1., "seed {seed}: {slower:?} {faster:?}");
        }
    }

    #[test]
    fn about_one_interval_in_twenty_misses() {
        let missed = (0..60).filter(|&seed| !of_noise(100., seed).contains(1.)).count();
        assert!((1..=8).contains(&missed), "{missed}");
    }

    #[test]
    fn the_same_series_have_the_same_interval() {
        let series = noisy(100., 0.03, 15, 1);
        let turns = Turns { samples: &series, turn: TURN };
        let first = interval(turns, turns).unwrap();
        assert!(first.contains(1.) && first.low < first.high, "{first:?}");
        assert_eq!(interval(turns, turns), Some(first));
    }

    #[test]
    fn whole_turns_are_resampled() {
        // The turns differ, but samples within a turn do not: 200 independent samples would carry more information than
        // 10 turns.
        let series: Vec<f64> = (0..200).map(|at| 100. + f64::from(at / 20)).collect();
        let width = |turn| {
            let turns = Turns { samples: &series, turn };
            let Interval { low, high } = interval(turns, turns).unwrap();
            high - low
        };
        assert!(width(20) > 2. * width(1), "{} {}", width(20), width(1));
    }

    #[test]
    fn too_few_turns_give_no_interval() {
        let few = Turns { samples: &[100.; 50], turn: 10 };
        let many = Turns { samples: &[100.; 60], turn: 10 };
        assert_eq!(interval(few, many), None);
        assert_eq!(interval(many, Turns { samples: &[], turn: 0 }), None);
        assert_eq!(interval(many, Turns { samples: &[0.; 60], turn: 10 }), None);
        assert_eq!(interval(many, many), Some(Interval { low: 1., high: 1. }));
    }
}
