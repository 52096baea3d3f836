//! Policies as schedulers. Above the schedulers and the laboratory, so that neither has to know the other.

use crate::lab;
use crate::schedule::{critical_path, dag, sequential, Opara, Policy, Problem, Schedule, Scheduler};
use crate::Result;

impl Scheduler for Policy {
    fn name(&self) -> String {
        self.as_str().into()
    }

    fn schedule(&self, problem: &Problem) -> Result<Schedule> {
        match self {
            Policy::Sequential => sequential::schedule(problem),
            Policy::Dag => dag::schedule(problem),
            Policy::Nimble => lab::nimble::schedule(problem),
            Policy::Rammer => lab::rammer::schedule(problem),
            Policy::Ios => lab::ios::schedule(problem),
            Policy::CriticalPath => critical_path::schedule(problem),
            Policy::Opara => Opara::default().schedule(problem),
            Policy::Tuned => lab::search::by_simulation(problem),
        }
    }
}
