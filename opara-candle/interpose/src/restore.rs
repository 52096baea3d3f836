//! Temporary values of thread-locals.

use std::cell::Cell;
use std::thread::LocalKey;

/// Restores a thread-local when dropped.
pub(crate) struct Restore<T: Copy + 'static>(pub &'static LocalKey<Cell<T>>, pub T);

impl<T: Copy + 'static> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
