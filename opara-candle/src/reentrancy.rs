//! Reentrancy: is a call part of another executor's recording or replay?

use std::cell::Cell;

thread_local! {
    static NESTED: Cell<bool> = const { Cell::new(false) };
}

/// Is this call part of another executor's recording or replay, or does it run on a capture thread?
///
/// A nested executor runs its module directly. In a recording, the outer executor then sees the module's operators; in a
/// replay, waiting for the worker pool from inside a worker would deadlock.
pub(crate) fn is_nested() -> bool {
    NESTED.get()
}

/// Runs `f` as part of a recording or a replay.
pub(crate) fn run_nested<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            NESTED.set(self.0);
        }
    }
    let _restore = Restore(NESTED.replace(true));
    f()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_call_is_nested_until_the_outermost_one_ends_also_by_a_panic() {
        assert!(!is_nested());
        run_nested(|| {
            run_nested(|| assert!(is_nested()));
            assert!(is_nested());
        });
        assert!(!is_nested());
        assert!(catch_unwind(|| run_nested(|| panic!("on purpose"))).is_err());
        assert!(!is_nested());
    }
}
