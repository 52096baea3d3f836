//! The scheduling setting of an executor.

use std::sync::Arc;

use crate::schedule::{Policy, Scheduler};
use crate::tune::Tuning;

/// The scheduling algorithm, for [`Builder::policy`](crate::Builder::policy): a [`Policy`], a search with its settings ([`Tuning`]),
/// or a user's [`Scheduler`]. The first two convert into it.
///
/// ```
/// use std::time::Duration;
/// use opara_candle::{OparaExecutor, Policy, Scheduling, Tuning};
/// # use opara_candle::schedule::{Problem, Result, Schedule, Scheduler};
/// # #[derive(Debug)]
/// # struct Own;
/// # impl Scheduler for Own {
/// #     fn name(&self) -> String { "own".into() }
/// #     fn schedule(&self, problem: &Problem) -> Result<Schedule> { Policy::Opara.schedule(problem) }
/// # }
///
/// let fixed = OparaExecutor::builder().policy(Policy::Nimble);
/// let tuned = OparaExecutor::builder().policy(Tuning::default().budget(Duration::from_secs(8)));
/// let own = OparaExecutor::builder().policy(Scheduling::custom(Own));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Scheduling {
    /// A policy of this library.
    Policy(Policy),
    /// [`Policy::Tuned`] with settings: the fastest schedule of a search that benchmarks many on the device.
    Tuned(Tuning),
    /// A user's scheduler. Each of its schedules is checked against the trace: a violated dependency is
    /// [`Error::InvalidSchedule`](crate::Error::InvalidSchedule).
    Custom(Arc<dyn Scheduler>),
}

impl Scheduling {
    /// Schedules by a user's scheduler.
    pub fn custom(scheduler: impl Scheduler + 'static) -> Self {
        Scheduling::Custom(Arc::new(scheduler))
    }
}

impl From<Policy> for Scheduling {
    fn from(policy: Policy) -> Self {
        Scheduling::Policy(policy)
    }
}

impl From<Tuning> for Scheduling {
    fn from(tuning: Tuning) -> Self {
        Scheduling::Tuned(tuning)
    }
}
