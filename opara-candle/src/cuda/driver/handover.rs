//! Passes a thread's capture and write watch to another thread.

/// The capture and the write watch of a thread, while it waits for another thread that continues them.
pub(crate) struct Handover(opara_interpose::Handover);

impl Handover {
    /// Takes them from this thread, which waits until it has given them back.
    pub fn take() -> Self {
        Self(opara_interpose::Handover::take())
    }

    /// Runs `f` with them on this thread.
    pub fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        // SAFETY: the thread that they were taken from waits for this one, inside of the pass.
        unsafe { self.0.during(f) }
    }

    /// Gives them back to the thread that they were taken from.
    pub fn give_back(self) {
        // SAFETY: the caller is that thread, and has waited inside of the pass.
        unsafe { self.0.give_back() }
    }
}
