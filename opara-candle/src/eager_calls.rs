//! Calls that run an executor's module eagerly, and whether some ran beside a build: such calls may change what the module keeps while it is
//! recorded.

use std::sync::atomic::{AtomicU64, Ordering};

/// Eager calls of a module.
#[derive(Debug, Default)]
pub(crate) struct EagerCalls {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The calls that had begun at a time, and whether one was running.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    begun: u64,
    is_running: bool,
}

impl EagerCalls {
    /// Makes a call.
    pub fn call<T>(&self, f: impl FnOnce() -> T) -> T {
        /// A call that panics ends, too.
        struct Ends<'a>(&'a AtomicU64);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _ends = Ends(&self.ended);
        f()
    }

    /// Now.
    pub fn now(&self) -> Moment {
        // In this order, a call that ends in between counts as running.
        let ended = self.ended.load(Ordering::SeqCst);
        let begun = self.begun.load(Ordering::SeqCst);
        Moment { begun, is_running: begun != ended }
    }

    /// Has a call run since?
    pub fn has_run_since(&self, moment: Moment) -> bool {
        moment.is_running || self.now().begun != moment.begun
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use super::*;

    #[test]
    fn calls_that_run_or_begin_are_seen() {
        let calls = EagerCalls::default();
        let before = calls.now();
        assert!(!calls.has_run_since(before));
        let during = calls.call(|| calls.now());
        assert!(calls.has_run_since(before) && calls.has_run_since(during));
        let after = calls.now();
        assert!(!calls.has_run_since(after));
        catch_unwind(AssertUnwindSafe(|| calls.call(|| panic!("of a test")))).unwrap_err();
        assert!(calls.has_run_since(after) && !calls.has_run_since(calls.now()));
    }
}
