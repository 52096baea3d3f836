//! How an executor schedules what it recorded: one setting of one type.

use std::sync::Arc;

use crate::schedule::{Policy, Scheduler};
use crate::tune::Tuning;

/// How launches are assigned to streams and ordered, for [`Builder::policy`](crate::Builder::policy): a [`Policy`], a search
/// with its settings ([`Tuning`]), or a [`Scheduler`] of the user's own. The first two convert into it.
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
    /// The fastest schedule that a search finds by running many on the device: [`Policy::Tuned`] with settings.
    Tuned(Tuning),
    /// A scheduler of the user's own. Each of its schedules is proven against the trace: one that lets an op overtake
    /// another that it depends on is [`Error::InvalidSchedule`](crate::Error::InvalidSchedule).
    Custom(Arc<dyn Scheduler>),
}

impl Scheduling {
    /// A scheduler of the user's own.
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
