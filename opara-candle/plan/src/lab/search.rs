//! The tuned schedule without a device: the search simulates the device of the trace.

use std::time::Duration;

use super::simulate::simulate;
use crate::device::DeviceModel;
use crate::schedule::{Problem, Schedule};
use crate::tune::{search, Bench, Search};
use crate::{Error, Result};

/// Mutations of a simulated search.
const MUTATIONS: usize = 64;

/// The fastest schedule that the search finds.
pub(crate) fn by_simulation(problem: &Problem) -> Result<Schedule> {
    let tuning = Search { budget: Duration::MAX, proposals: MUTATIONS, cache: None, ..Default::default() };
    Ok(search(problem, &mut Simulation::of(problem), &tuning)?.schedule)
}

/// A simulated device: every run of a schedule takes the same time.
pub(crate) struct Simulation<'a> {
    problem: &'a Problem<'a>,
    device: DeviceModel,
}

impl<'a> Simulation<'a> {
    /// The device that the trace was recorded on.
    pub(crate) fn of(problem: &'a Problem<'a>) -> Self {
        Self { problem, device: DeviceModel::of(&problem.trace.device) }
    }
}

impl Bench for Simulation<'_> {
    type Runner = f64;
    type Error = Error;

    fn runner(&mut self, schedule: &Schedule) -> Result<f64> {
        Ok(simulate(self.problem, schedule, &self.device).total_us)
    }

    fn run(&mut self, us: &f64) -> Result<f64> {
        Ok(*us)
    }
}
