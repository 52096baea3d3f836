//! Modules that are not `Send`: each is made on a capture thread, where it lives and is called.

use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use candle::Tensor;

use crate::backend::Function;
use crate::capture_thread::CaptureThread;
use crate::cpu::record as cpu;
use crate::error::caught;
use crate::trace::scope;
use crate::{cuda, Result};

/// A function that never leaves its thread; panics are errors.
type Local = Rc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>>>;

thread_local! {
    /// The function that lives on this thread.
    static RESIDENT: RefCell<Option<Local>> = const { RefCell::new(None) };
    /// Its number; 0 for none.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Makes a function on a thread of its own, where it stays, and returns one that calls it from anywhere. `inputs` are what
/// it will be called with.
///
/// # Errors
/// Those of `make`, and [`Error::Panicked`](crate::Error::Panicked) if it panics.
pub(crate) fn load<F>(make: impl FnOnce() -> candle::Result<F> + Send + 'static, inputs: &[Tensor]) -> Result<Function>
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
{
    // Weights that it takes from may come from this thread's stream, too.
    cuda::hand_over(inputs)?;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let resident = Resident { thread: CaptureThread::take()?, number };
    resident.thread.run(move || {
        let function = make()?;
        RESIDENT.set(Some(Rc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))));
        NUMBER.set(number);
        Ok(())
    })?;
    Ok(Arc::new(move |inputs| resident.call(inputs)))
}

/// What other threads know of a function.
struct Resident {
    thread: CaptureThread,
    number: u64,
}

impl Resident {
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
        // Whatever has failed: the recording goes on without this call.
        recording.restore();
        handed_over?;
        outputs
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // Not waited for, since whoever drops this may hold locks. The function is dropped outside of the borrow: it may
        // call others as it goes.
        let remove = || {
            NUMBER.set(0);
            drop(RESIDENT.take());
        };
        self.thread.post(move || drop(catch_unwind(AssertUnwindSafe(remove))));
    }
}

/// Calls the function that lives on this thread.
fn call(inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
    match RESIDENT.with_borrow(Clone::clone) {
        Some(function) => function(inputs),
        None => unreachable!("a function lives as long as its resident"),
    }
}

/// All that a thread records, on its way to the thread on which the module lives.
struct Recording {
    operators: cpu::Suspended,
    scopes: scope::Suspended,
    capture: cuda::Handover,
}

impl Recording {
    /// Takes this thread's recording away, as far as there is one.
    fn take() -> Self {
        Self { operators: cpu::Suspended::take(), scopes: scope::Suspended::take(), capture: cuda::Handover::take() }
    }

    /// Goes on with it on this thread while `f` runs.
    fn resume<T>(self, f: impl FnOnce() -> T) -> (T, Self) {
        let Self { operators, scopes, capture } = self;
        let ((result, scopes), operators) = operators.resume(|| scopes.resume(|| capture.during(f)));
        (result, Self { operators, scopes, capture })
    }

    /// Gives it back to the thread that it was taken from.
    fn restore(self) {
        self.operators.restore();
        self.scopes.restore();
        self.capture.give_back();
    }
}
