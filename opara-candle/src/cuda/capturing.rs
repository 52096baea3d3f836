//! The lock between captures and launches: what another thread launches on the stream that captures would be captured,
//! too.

use std::cell::{Cell, RefCell};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::{Error, Result};

/// Held for writing during a capture, on the home thread, and for reading by who launches.
static CAPTURING: RwLock<()> = RwLock::new(());

thread_local! {
    /// This thread's share of the lock: taken once, however often launches nest.
    static SHARE: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
    /// Whether this thread is the one that captures right now.
    static CAPTURES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which captures, while nobody launches.
///
/// # Errors
/// Those of `f`, and [`Error::NotCapturable`] inside another capture.
pub(super) fn exclusively<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    // Captures run on one thread: who finds another one under way is part of it.
    if CAPTURING.is_locked_exclusive() {
        let reason = "it is built inside the forward pass of a module that is being captured".into();
        return Err(Error::NotCapturable { reason });
    }
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CAPTURES.set(false);
        }
    }
    let _capturing = CAPTURING.write();
    CAPTURES.set(true);
    let _end = End;
    f()
}

/// Runs `f`, which launches, while no capture is under way, unless it is part of one.
pub(crate) fn while_not_capturing<T>(f: impl FnOnce() -> T) -> T {
    if CAPTURES.get() || SHARE.with_borrow(Option::is_some) {
        return f();
    }
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            SHARE.set(None);
        }
    }
    SHARE.set(Some(CAPTURING.read()));
    let _release = Release;
    f()
}

/// Runs `f`, which only waits, for the home thread or for a lock that is held by who waits for it: a capture may come
/// first, even where this thread is in the middle of launches.
pub(crate) fn while_waiting<T>(f: impl FnOnce() -> T) -> T {
    let shared = SHARE.take().is_some();
    let result = f();
    if shared {
        SHARE.set(Some(CAPTURING.read()));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn launches_nest_and_let_a_capture_pass_while_they_wait() {
        let (captured, capture) = channel();
        let capturing = while_not_capturing(|| {
            let capturing = thread::spawn(move || {
                exclusively(|| {
                    assert!(exclusively(|| Ok(())).is_err(), "no capture inside a capture");
                    while_not_capturing(|| ());
                    assert!(captured.send(()).is_ok());
                    Ok(())
                })
            });
            // Whether or not the capture already waits, this thread goes on.
            while_not_capturing(|| assert!(capture.try_recv().is_err(), "no capture while this thread launches"));
            assert!(while_waiting(|| capture.recv()).is_ok());
            assert!(SHARE.with_borrow(Option::is_some));
            capturing
        });
        assert!(SHARE.with_borrow(Option::is_none));
        assert!(capturing.join().is_ok_and(|result| result.is_ok()));
    }
}
