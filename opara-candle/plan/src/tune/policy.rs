//! Policies as schedulers: fixed policies make their schedule directly, the tuned policy searches for it by simulation.

use super::by_simulation;
use crate::schedule::{Policy, Problem, Schedule, Scheduler};
use crate::Result;

impl Scheduler for Policy {
    fn name(&self) -> String {
        self.as_str().into()
    }

    fn schedule(&self, problem: &Problem) -> Result<Schedule> {
        match self.fixed() {
            Some(schedule) => schedule(problem),
            None => by_simulation(problem),
        }
    }
}
