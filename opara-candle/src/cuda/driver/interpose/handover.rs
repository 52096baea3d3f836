//! Passes a thread's capture and write watch to another thread.

use super::thread_capture::{self, ThreadCapture};
use super::written_memory::{self, WrittenMemory};

/// The capture and the write watch of a thread, while it waits for another thread that continues them.
pub(crate) struct Handover(*mut ThreadCapture, *mut WrittenMemory);

// SAFETY: the first thread waits until the other one is done. So only one thread at a time uses the values, which are on the first
// thread's stack.
unsafe impl Send for Handover {}

impl Handover {
    /// Takes them from this thread.
    pub fn take() -> Self {
        Self(thread_capture::take(), written_memory::take())
    }

    /// Runs `f` with them on this thread.
    pub fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        thread_capture::during(self.0, || written_memory::during(self.1, f))
    }

    /// Gives them back to the thread that they were taken from.
    pub fn give_back(self) {
        thread_capture::give_back(self.0);
        written_memory::give_back(self.1);
    }
}
