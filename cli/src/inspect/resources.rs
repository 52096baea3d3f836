//! The resources that a trace's kernels use.

use std::fmt;

use opara_plan::prepared::Prepared;
use opara_plan::trace::{Launch, Work};
use serde::Serialize;

use crate::table::Table;

/// The resources of all kernels that every call launches.
#[derive(Debug, Clone, Serialize)]
pub struct Resources {
    /// Thread blocks per launch.
    blocks: Spread,
    /// Threads per block.
    threads: Spread,
    /// Registers per thread.
    registers: Spread,
    /// Bytes of shared memory per block.
    shared: Spread,
    /// Share of the device that a launch needs at once.
    demand: Spread,
    /// Number of waves: how often a launch fills the device.
    waves: Spread,
}

/// Minimum, median and maximum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    /// `None` without numbers.
    fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        Some(Self { min: *numbers.first()?, median: numbers[numbers.len() / 2], max: *numbers.last()? })
    }
}

impl Resources {
    /// `None` if no kernel is launched, as on a CPU.
    pub fn of(prepared: &Prepared) -> Option<Self> {
        let kernels = prepared.ops.trace.ops.iter().zip(&prepared.profile).filter_map(|(op, profile)| match &op.work {
            Work::Kernel(launch) => Some((launch, profile)),
            _ => None,
        });
        let of = |number: fn(&Launch) -> f64| Spread::of(kernels.clone().map(|(launch, _)| number(launch)));
        Some(Self {
            blocks: of(|launch| launch.blocks() as f64)?,
            threads: of(|launch| launch.threads().into())?,
            registers: of(|launch| launch.registers.into())?,
            shared: of(|launch| launch.shared().into())?,
            demand: Spread::of(kernels.clone().map(|(_, profile)| profile.demand))?,
            waves: Spread::of(kernels.clone().map(|(_, profile)| profile.waves))?,
        })
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["kernels", "min", "median", "max"]);
        let mut row = |name: &str, spread: Spread, digits: usize| {
            table.row(name, [spread.min, spread.median, spread.max].map(|number| format!("{number:.digits$}")));
        };
        row("blocks", self.blocks, 0);
        row("threads of a block", self.threads, 0);
        row("registers of a thread", self.registers, 0);
        row("shared memory of a block, bytes", self.shared, 0);
        row("demand, share of the device", self.demand, 3);
        row("waves", self.waves, 3);
        table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_sorts_its_numbers() {
        assert_eq!(Spread::of([3., 1., 2.].into_iter()), Some(Spread { min: 1., median: 2., max: 3. }));
        assert_eq!(Spread::of(std::iter::empty()), None);
    }
}
