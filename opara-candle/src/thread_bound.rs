//! Modules that are not `Send`: each is built, called and dropped on one capture thread.

use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use candle::Tensor;

use crate::backend::Function;
use crate::capture_thread::CaptureThread;
use crate::cpu::record as cpu;
use crate::panics::caught;
use crate::trace::scope;
use crate::{cuda, Result};

/// A function that never leaves its thread. It returns a panic as an error.
type Local = Rc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>>>;

thread_local! {
    /// The function that is bound to this thread.
    static FUNCTION: RefCell<Option<Local>> = const { RefCell::new(None) };
    /// Its number; 0 if there is none.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Builds a function on its own capture thread, and returns a function that any thread can call. `inputs` are the first call's.
///
/// # Errors
/// Errors of `make`, and [`Error::Panicked`](crate::Error::Panicked) if it panics.
pub(crate) fn build<F>(make: impl FnOnce() -> candle::Result<F> + Send + 'static, inputs: &[Tensor]) -> Result<Function>
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
{
    // Weights may be computed on this thread's stream, too.
    cuda::hand_over(inputs)?;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let bound = ThreadBound { thread: CaptureThread::take()?, number };
    bound.thread.run(move || {
        let function = make()?;
        FUNCTION.set(Some(Rc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))));
        NUMBER.set(number);
        Ok(())
    })?;
    Ok(Arc::new(move |inputs| bound.call(inputs)))
}

/// The handle by which other threads call a function.
struct ThreadBound {
    thread: CaptureThread,
    number: u64,
}

impl ThreadBound {
    fn call(&self, inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        if NUMBER.get() == self.number {
            return call(inputs);
        }
        cuda::hand_over(inputs)?;
        let (recording, inputs) = (Recording::take(), inputs.to_vec());
        let (outputs, recording, handed_over) = self.thread.run(move || {
            let (outputs, recording) = recording.resume(|| call(&inputs));
            Ok((outputs, recording, cuda::hand_over(&inputs)))
        })?;
        // Also after a failure: the recording continues without this call.
        recording.restore();
        handed_over?;
        outputs
    }
}

impl Drop for ThreadBound {
    fn drop(&mut self) {
        // Without waiting, since the thread that drops this may hold locks. The function is dropped outside of the borrow:
        // its drop may call other functions of this thread.
        let remove = || {
            NUMBER.set(0);
            drop(FUNCTION.take());
        };
        self.thread.post(move || drop(catch_unwind(AssertUnwindSafe(remove))));
    }
}

/// Calls the function that is bound to this thread.
fn call(inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
    match FUNCTION.with_borrow(Clone::clone) {
        Some(function) => function(inputs),
        None => unreachable!("the function lives as long as its handle"),
    }
}

/// A thread's recordings, passed to the thread to which the module is bound.
struct Recording {
    operators: cpu::Suspended,
    scopes: scope::Suspended,
    capture: cuda::Handover,
}

impl Recording {
    /// Takes this thread's recordings, if there are any.
    fn take() -> Self {
        Self { operators: cpu::Suspended::take(), scopes: scope::Suspended::take(), capture: cuda::Handover::take() }
    }

    /// Continues them on this thread while `f` runs.
    fn resume<T>(self, f: impl FnOnce() -> T) -> (T, Self) {
        let Self { operators, scopes, capture } = self;
        let ((result, scopes), operators) = operators.resume(|| scopes.resume(|| capture.during(f)));
        (result, Self { operators, scopes, capture })
    }

    /// Gives them back to the thread from which they were taken.
    fn restore(self) {
        self.operators.restore();
        self.scopes.restore();
        self.capture.give_back();
    }
}
