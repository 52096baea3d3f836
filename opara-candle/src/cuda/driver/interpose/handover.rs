//! A capture, or a watch over writes, that goes on in another thread.

use super::thread_capture::{self, ThreadCapture};
use super::written_memory::{self, WrittenMemory};

/// What this module keeps for a thread, on its way to another thread, which goes on with it while the first one waits.
pub(crate) struct Handover(*mut ThreadCapture, *mut WrittenMemory);

// SAFETY: whoever hands over waits until the other thread is done, so that one thread at a time uses the values, which
// live on the first one's stack.
unsafe impl Send for Handover {}

impl Handover {
    /// Takes what this thread has.
    pub fn take() -> Self {
        Self(thread_capture::take(), written_memory::take())
    }

    /// Goes on with it on this thread while `f` runs.
    pub fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        thread_capture::during(self.0, || written_memory::during(self.1, f))
    }

    /// Gives it back to the thread that it was taken from.
    pub fn give_back(self) {
        thread_capture::give_back(self.0);
        written_memory::give_back(self.1);
    }
}
