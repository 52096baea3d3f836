//! Schedulers as schedulers. Above the schedulers and the laboratory, so that neither has to know the other.

use crate::lab;
use crate::schedule::{critical_path, dag, sequential, BuiltIn, Opara, Problem, Schedule, Scheduler};
use crate::Result;

impl Scheduler for BuiltIn {
    fn name(&self) -> String {
        self.as_str().into()
    }

    fn schedule(&self, problem: &Problem) -> Result<Schedule> {
        match self {
            BuiltIn::Sequential => sequential::schedule(problem),
            BuiltIn::Dag => dag::schedule(problem),
            BuiltIn::Nimble => lab::nimble::schedule(problem),
            BuiltIn::Rammer => lab::rammer::schedule(problem),
            BuiltIn::Ios => lab::ios::schedule(problem),
            BuiltIn::CriticalPath => critical_path::schedule(problem),
            BuiltIn::Opara => Opara::default().schedule(problem),
            BuiltIn::Tuned => lab::search::by_simulation(problem),
        }
    }
}
