//! What [`Builder::scheduler`](crate::Builder::scheduler) takes.

use std::sync::Arc;

use crate::plan::schedule::{BuiltIn, Scheduler};
use crate::plan::Search;

/// Who schedules: a scheduler of this library, a search for the fastest schedule, or a user's scheduler. All three convert into it.
#[derive(Debug, Clone)]
pub enum Scheduling {
    /// A scheduler of this library.
    BuiltIn(BuiltIn),
    /// A search with these settings.
    Search(Search),
    /// A user's scheduler, whose schedules are checked.
    Own(Arc<dyn Scheduler>),
}

impl From<BuiltIn> for Scheduling {
    fn from(scheduler: BuiltIn) -> Self {
        match scheduler {
            BuiltIn::Tuned => Scheduling::Search(Search::default()),
            fixed => Scheduling::BuiltIn(fixed),
        }
    }
}

impl From<Search> for Scheduling {
    fn from(search: Search) -> Self {
        Scheduling::Search(search)
    }
}

impl<S: Scheduler + 'static> From<Arc<S>> for Scheduling {
    fn from(scheduler: Arc<S>) -> Self {
        Scheduling::Own(scheduler)
    }
}
