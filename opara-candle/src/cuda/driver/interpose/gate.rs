//! The gate between captures and waits for the whole device.
//!
//! The driver breaks a capture off, whichever stream it is on, when any thread waits for the whole device; that thread's
//! call fails, too (measured with driver 580: `cuCtxSynchronize` and cuRAND's first draw fail, and making or destroying
//! a handle of cuBLAS goes well but breaks the capture). So such a call waits here until no capture is under way, and a
//! capture begins once no such call is. A capture runs a module, which may wait for a lock that the other thread holds:
//! the wait for captures is therefore bounded, and after it the call goes ahead. A capture that is broken off is made
//! again.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Longer than captures take, so that only a deadlock reaches it. A capture of 5,000 launches takes 30 ms, but seconds
/// while other threads let the driver compile modules, which it does under a lock.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

struct State {
    captures: usize,
    /// Calls that wait for the whole device, or for captures to end first.
    waits: usize,
}

static STATE: Mutex<State> = Mutex::new(State { captures: 0, waits: 0 });
static CHANGED: Condvar = Condvar::new();

/// A capture that is under way, until it is dropped.
pub(in crate::cuda::driver) struct Capturing(());

impl Capturing {
    /// Waits for calls that wait for the whole device, and keeps further ones off.
    pub fn begin() -> Self {
        let mut state = STATE.lock();
        CHANGED.wait_while(&mut state, |state| state.waits > 0);
        state.captures += 1;
        Self(())
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        STATE.lock().captures -= 1;
        CHANGED.notify_all();
    }
}

/// Runs `f`, which waits for the whole device, while no capture is under way, or after the longest wait for that.
pub(super) fn between_captures<T>(f: impl FnOnce() -> T) -> T {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            STATE.lock().waits -= 1;
            CHANGED.notify_all();
        }
    }
    let mut state = STATE.lock();
    state.waits += 1;
    let _done = Done;
    CHANGED.wait_while_for(&mut state, |state| state.captures > 0, LONGEST_WAIT);
    drop(state);
    f()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_for_the_device_comes_after_the_capture_and_before_the_next() {
        let (order, events) = channel();
        let capture = Capturing::begin();
        let waiting = {
            let order = order.clone();
            thread::spawn(move || between_captures(|| order.send("device").is_ok()))
        };
        // Until the other thread waits.
        while STATE.lock().waits == 0 {
            thread::yield_now();
        }
        assert!(order.send("capture").is_ok());
        let next = thread::spawn(move || {
            let _capture = Capturing::begin();
            order.send("next capture").is_ok()
        });
        drop(capture);
        assert!(waiting.join().is_ok_and(|sent| sent) && next.join().is_ok_and(|sent| sent));
        assert_eq!(events.into_iter().collect::<Vec<_>>(), ["capture", "device", "next capture"]);
    }
}
