//! The lock on the output buffers that all calls of one shape write to.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]

use crate::sync::{Condvar, Mutex};

/// One call holds it at a time, then the closure that borrows the outputs.
#[derive(Default)]
pub(crate) struct OutputLock {
    holder: Mutex<Holder>,
    changed: Condvar,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    /// A call. It runs no user code, so it ends soon.
    Call,
    /// A user's closure.
    Closure,
}

impl OutputLock {
    /// Waits until the buffers are free, and takes them.
    ///
    /// `None` if a closure holds them and this thread is inside a closure, too (`is_inside`). Waiting could then last forever: two
    /// threads may each be inside a closure and call the executor whose outputs the other one's closure holds.
    pub fn take(&self, is_inside: bool) -> Option<HeldOutputs<'_>> {
        let mut holder = self.holder.lock();
        while *holder != Holder::Nobody {
            if *holder == Holder::Closure && is_inside {
                return None;
            }
            self.changed.wait(&mut holder);
        }
        *holder = Holder::Call;
        Some(HeldOutputs(self))
    }

    fn set_holder(&self, holder: Holder) {
        *self.holder.lock() = holder;
        // All waiting threads: one that is inside a closure itself must now return an error instead of waiting.
        self.changed.notify_all();
    }
}

/// The held lock; dropping it releases the buffers.
pub(crate) struct HeldOutputs<'a>(&'a OutputLock);

impl HeldOutputs<'_> {
    /// Passes the buffers from the call to its closure.
    pub fn pass_to_closure(&self) {
        self.0.set_holder(Holder::Closure);
    }
}

impl Drop for HeldOutputs<'_> {
    fn drop(&mut self) {
        self.0.set_holder(Holder::Nobody);
    }
}
