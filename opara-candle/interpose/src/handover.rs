//! Passes a thread's capture and write watch to another thread.

use super::thread_capture::{self, ThreadCapture};
use super::watch;

/// The capture and the write watch of a thread, while it waits for another thread that continues them.
pub struct Handover(*mut ThreadCapture, watch::Current);

// SAFETY: the first thread waits until the other one is done. So only one thread at a time uses the values, which are on the first
// thread's stack.
unsafe impl Send for Handover {}

impl Handover {
    /// Takes them from this thread.
    pub fn take() -> Self {
        Self(thread_capture::take(), watch::take())
    }

    /// Runs `f` with them on this thread.
    ///
    /// # Safety
    /// The thread that they were taken from must wait meanwhile, inside of what it captures and watches.
    pub unsafe fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        thread_capture::during(self.0, || watch::during(self.1, f))
    }

    /// Gives them back to this thread.
    ///
    /// # Safety
    /// They must have been taken from this thread, inside of what it still captures and watches.
    pub unsafe fn give_back(self) {
        thread_capture::give_back(self.0);
        watch::give_back(self.1);
    }
}
