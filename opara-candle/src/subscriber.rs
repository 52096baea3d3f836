//! Warnings and spans of other threads, for the subscriber of the thread that gives them work.

use tracing::dispatcher::{get_default, with_default};

/// `work` for another thread: what it reports goes to this thread's subscriber.
pub(crate) fn inherited<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let dispatch = get_default(Clone::clone);
    move || with_default(&dispatch, work)
}
