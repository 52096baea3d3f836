//! Thread-locals that are set for a while.

use std::cell::Cell;
use std::thread::LocalKey;

/// Puts a thread-local value back when dropped.
pub(super) struct Restore<T: Copy + 'static>(pub &'static LocalKey<Cell<T>>, pub T);

impl<T: Copy + 'static> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
