//! Mutual exclusion of captures and calls that wait for the whole device.
//!
//! The driver aborts every capture, on any stream, when a thread waits for the whole device, and that thread's call fails, too.
//! (Measured with driver 580: `cuCtxSynchronize` and cuRAND's first draw fail; creating or destroying a cuBLAS handle succeeds, but
//! aborts the capture. cuDNN's handles do not.) So such a call waits here until no capture runs, and a capture begins when no such call
//! runs.
//!
//! A deadlock is possible: a captured module may wait for the thread that waits here, for example for a lock. So the waiting thread ends
//! a capture that has made no call for [`PATIENCE`], if it is outside of driver calls. The module's next call is then refused, and
//! the capture is repeated. During a driver call the capture is not ended, since the rest of the call would run outside of it.
//! Such calls end by themselves, though they may take seconds while the driver compiles modules for another thread. Nor is a capture
//! ended that is long: beside many threads, thousands of launches take more than [`PATIENCE`].
//!
//! `opara-candle/tests/interleavings` runs a gate in every order of its threads' steps.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Longer than a module computes between two calls of the driver.
const PATIENCE: Duration = Duration::from_secs(1);

/// Times that [`PATIENCE`] passes before every capture is ended: one may make calls until the waiting thread goes on.
const LONGEST: usize = 120;

/// A capture, as the gate sees it.
pub(crate) trait Capture {
    /// Has another thread ended it?
    fn is_over(&self) -> bool;

    /// How many calls of the driver it has begun.
    fn calls(&self) -> usize;

    /// Ends it from another thread, unless it is inside a driver call.
    fn end(&self);
}

/// Lets captures in, or calls that wait for the whole device.
pub(crate) struct Gate<C> {
    state: Mutex<State<C>>,
    changed: Condvar,
}

struct State<C> {
    captures: Vec<Arc<C>>,
    /// Number of calls that wait for the whole device, or for captures to end first.
    waits: usize,
}

impl<C> Default for Gate<C> {
    /// Nobody is inside.
    fn default() -> Self {
        Self { state: Mutex::new(State { captures: Vec::new(), waits: 0 }), changed: Condvar::default() }
    }
}

impl<C: Capture> Gate<C> {
    /// Waits until no call waits for the whole device, and delays further such calls until the capture [leaves](Self::leave).
    pub fn enter(&self, capture: Arc<C>) {
        let mut state = self.state.lock();
        while state.waits > 0 {
            self.changed.wait(&mut state);
        }
        state.captures.push(capture);
    }

    /// The capture has ended.
    pub fn leave(&self, capture: &Arc<C>) {
        self.state.lock().captures.retain(|other| !Arc::ptr_eq(other, capture));
        self.changed.notify_all();
    }

    /// Runs `f`, which waits for the whole device, while no capture runs.
    pub fn between_captures<T>(&self, f: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.waits += 1;
        let _waiting = Waiting(self);
        let count = |state: &State<C>| -> Vec<_> { state.captures.iter().map(|of| (of.clone(), of.calls())).collect() };
        let (mut counted, mut times) = (count(&state), 0);
        while state.captures.iter().any(|capture| !capture.is_over()) {
            if self.changed.wait_for(&mut state, PATIENCE).timed_out() {
                times += 1;
                let stands = |(capture, calls): &&(Arc<C>, usize)| times >= LONGEST || capture.calls() == *calls;
                counted.iter().filter(stands).for_each(|(capture, _)| capture.end());
                counted = count(&state);
            }
        }
        drop(state);
        f()
    }
}

/// A call that is counted in [`State::waits`].
struct Waiting<'a, C>(&'a Gate<C>);

impl<C> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        self.0.state.lock().waits -= 1;
        self.0.changed.notify_all();
    }
}
