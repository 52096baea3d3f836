//! Compares simulated with measured times.

use serde::{Deserialize, Serialize};

use super::simulate;
use crate::device::DeviceModel;
use crate::prepared::Prepared;
use crate::schedule::{BuiltIn, Scheduler};
use crate::trace::Trace;
use crate::Result;

/// A scheduler's schedule, simulated and measured on the device that the trace was recorded on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedAndMeasured {
    /// The scheduler.
    pub scheduler: BuiltIn,
    /// Microseconds of a pass, simulated.
    pub simulated_us: f64,
    /// Microseconds of a pass, measured.
    pub measured_us: f64,
}

impl SimulatedAndMeasured {
    /// All schedulers that were measured on a trace, in the order of the measurements. Tuned schedules are left out, since they do
    /// not follow from the trace.
    ///
    /// # Errors
    /// Errors of the schedulers.
    pub fn all(trace: &Trace, prepared: &Prepared) -> Result<Vec<Self>> {
        let device = DeviceModel::of(&trace.device);
        let problem = prepared.problem();
        let mut compared = Vec::new();
        for measured in &trace.measured {
            let named = |scheduler: &BuiltIn| scheduler.name() == measured.schedule;
            if let Some(scheduler) = BuiltIn::FIXED.into_iter().find(named) {
                let simulated_us = simulate(&problem, &scheduler.schedule(&problem)?, &device).total_us;
                compared.push(Self { scheduler, simulated_us, measured_us: measured.nanos as f64 / 1e3 });
            }
        }
        Ok(compared)
    }
}

/// Agreement of simulated with measured times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Pairs that were compared.
    pub pairs: usize,
    /// Median of the errors, each relative to the measured time.
    pub median_error: f64,
    /// Spearman's rank correlation from -1 to 1: are schedules that are simulated to be faster measured to be faster? Times within
    /// [`PROCESS_NOISE`] of each other count as equal. `None` if all simulated or all measured times are equal.
    pub rank_correlation: Option<f64>,
}

/// The relative difference in time of one schedule between two processes on one device.
pub const PROCESS_NOISE: f64 = 0.02;

impl Agreement {
    /// Compares pairs of a simulated and a measured time, in the same unit. Pairs with a value that is not positive and finite are
    /// ignored. `None` if no pair is left.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let is_time = |us: f64| us.is_finite() && us > 0.;
        let pairs: Vec<(f64, f64)> = pairs.iter().copied().filter(|&(s, m)| is_time(s) && is_time(m)).collect();
        let (simulated, measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        Some(Self {
            pairs: pairs.len(),
            median_error: median(pairs.iter().map(|(s, m)| (s - m).abs() / m).collect())?,
            rank_correlation: correlation(&ranks(&simulated), &ranks(&measured)),
        })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[values.len() / 2 - 1] + upper) / 2. })
}

/// The rank of each time: the number of shorter times, plus half the number of other times that count as equal.
fn ranks(times: &[f64]) -> Vec<f64> {
    let shorter = |a: f64, b: f64| a < b * (1. - PROCESS_NOISE);
    let rank = |&time: &f64| -> f64 {
        let part = |&other: &f64| match (shorter(other, time), shorter(time, other)) {
            (true, _) => 1.,
            (_, true) => 0.,
            _ => 0.5,
        };
        times.iter().map(part).sum::<f64>() - 0.5
    };
    times.iter().map(rank).collect()
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let products = |x: &[f64], mean_x: f64, y: &[f64], mean_y: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum()
    };
    let spread = (products(a, mean_a, a, mean_a) * products(b, mean_b, b, mean_b)).sqrt();
    (spread > 0.).then(|| (products(a, mean_a, b, mean_b) / spread).clamp(-1., 1.))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_measurements() {
        let agreement = Agreement::of(&[(90., 100.), (110., 100.), (300., 200.), (8., 10.)]).unwrap();
        assert_eq!(agreement.pairs, 4);
        assert!((agreement.median_error - 0.15).abs() < 1e-12);
        assert_eq!(Agreement::of(&[(3., 2.)]).unwrap().rank_correlation, None);
        assert_eq!(Agreement::of(&[(1., 0.), (f64::NAN, 1.)]), None);
    }

    #[test]
    fn only_the_order_counts_for_the_correlation() {
        let rank = |pairs: &[(f64, f64)]| Agreement::of(pairs).unwrap().rank_correlation.unwrap();
        assert_eq!(rank(&[(1., 10.), (2., 1000.), (3., 1031.)]), 1.);
        assert_eq!(rank(&[(1., 9.), (2., 3.), (3., 1.)]), -1.);
        // One pair of neighbours of four swapped: 1 - 6 * 2 / (4 * 15).
        assert!((rank(&[(1., 1.), (2., 2.), (3., 4.), (4., 3.)]) - 0.8).abs() < 1e-12);
        // Ranks 0.5, 0.5, 2 against 0, 1, 2.
        assert!((rank(&[(500., 1.), (501., 2.), (600., 3.)]) - 0.75f64.sqrt()).abs() < 1e-12);
        assert_eq!(Agreement::of(&[(1., 100.), (2., 101.), (3., 100.5)]).unwrap().rank_correlation, None);
    }
}
