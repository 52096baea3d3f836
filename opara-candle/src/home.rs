//! The one thread that never ends: captures run on it, and modules live on it that no other thread may touch.
//!
//! candle keeps cuDNN's handle in a thread-local. This thread, and so the handle that captured kernels were chosen with,
//! never ends. Captures of all executors and calls of the modules that live here take turns.
//!
//! Whoever waits for this thread may hold locks of an executor. So nothing here may wait for them: the thread counts as
//! nested, where executors call their modules as they are.

use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, OnceLock};

use candle::Tensor;
use hashbrown::HashMap;

use crate::backend::Function;
use crate::cpu::record::Suspended;
use crate::error::caught;
use crate::executor::nested;
use crate::{cuda, Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A function that never leaves this thread; panics are errors.
type Local = Rc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>>>;

thread_local! {
    static IS_HOME: Cell<bool> = const { Cell::new(false) };
    static RESIDENTS: RefCell<HashMap<u64, Local>> = RefCell::default();
}

/// Runs `job` on the home thread and waits for it; on that thread, at once.
///
/// # Errors
/// Those of `job`, and [`Error::Panicked`] if it panics.
pub(crate) fn run<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if IS_HOME.get() {
        return caught(job);
    }
    let (sender, result) = channel();
    // Warnings and spans go where the caller's go.
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    post(move || drop(sender.send(caught(|| tracing::dispatcher::with_default(&dispatch, job)))))?;
    cuda::while_waiting(|| result.recv()).map_err(|_| lost())?
}

/// Runs `job`, which does not panic, on the home thread after all that was posted before.
fn post(job: impl FnOnce() + Send + 'static) -> Result<()> {
    static HOME: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        let run = move || {
            IS_HOME.set(true);
            // Threads of its own for candle's loops: those of the global pool may all wait for this one. Without them,
            // it uses the global pool.
            let _pool = rayon::ThreadPoolBuilder::new().use_current_thread().build();
            nested(|| jobs.into_iter().for_each(|job| job()));
        };
        std::thread::Builder::new().name("opara-home".into()).spawn(run).ok().map(|_| sender)
    });
    home.as_ref().ok_or_else(lost)?.send(Box::new(job)).map_err(|_| lost())
}

fn lost() -> Error {
    Error::NotCapturable { reason: "the thread for captures could not be started or has ended".into() }
}

/// Makes a function on the home thread, where it stays, and returns one that calls it from anywhere. `inputs` are what
/// it will be called with.
///
/// # Errors
/// Those of `make`, and [`Error::Panicked`] if it panics.
pub(crate) fn load<F>(make: impl FnOnce() -> candle::Result<F> + Send + 'static, inputs: &[Tensor]) -> Result<Function>
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
{
    // Weights that it takes from may come from this thread's stream, too.
    cuda::hand_over(inputs)?;
    let resident = run(move || {
        let function = make()?;
        Ok(Resident::new(Rc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))))
    })?;
    Ok(Arc::new(move |inputs| resident.call(inputs)))
}

/// What other threads know of a function that lives here: its key.
struct Resident(u64);

impl Resident {
    fn new(function: Local) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        RESIDENTS.with_borrow_mut(|residents| residents.insert(key, function));
        Self(key)
    }

    fn call(&self, inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        let key = self.0;
        if IS_HOME.get() {
            return call(key, inputs);
        }
        cuda::hand_over(inputs)?;
        let (recording, inputs) = (Suspended::take(), inputs.to_vec());
        let (outputs, recording) = run(move || {
            let (outputs, recording) = recording.resume(|| call(key, &inputs));
            cuda::hand_over(&inputs)?;
            Ok((outputs, recording))
        })?;
        recording.restore();
        outputs
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let key = self.0;
        // Not waited for, since whoever drops this may hold locks, and on the home thread itself not done at once: it
        // may be in the middle of a capture. The function is dropped outside of the borrow: it may call others as it goes.
        let remove = move || drop(RESIDENTS.with_borrow_mut(|residents| residents.remove(&key)));
        // Without the thread there is no function, either.
        let _ = post(move || drop(catch_unwind(AssertUnwindSafe(remove))));
    }
}

/// Calls a function that lives on this thread.
fn call(key: u64, inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
    match RESIDENTS.with_borrow(|residents| residents.get(&key).cloned()) {
        Some(function) => function(inputs),
        None => unreachable!("a function lives as long as its resident"),
    }
}
