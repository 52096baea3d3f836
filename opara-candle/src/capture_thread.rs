//! Capture threads: they perform all captures, and own the modules that are not `Send`.
//!
//! candle keeps cuDNN's handles in a thread-local. A capture thread runs for the life of the process, so the handle with which
//! captured kernels were chosen stays valid. A thread has one job at a time; if no thread is free, another one is started. So a
//! module that waits inside a job for another thread's lock delays no other job.
//!
//! Executors that are called on a capture thread run their modules directly, as part of the recording there.

use std::cell::Cell;
use std::sync::mpsc::{channel, Sender};

use parking_lot::Mutex;

use crate::panics::caught;
use crate::reentrancy::run_nested;
use crate::subscriber::inherited;
use crate::{choice_folder, Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// The threads that have no job and no module.
static FREE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

thread_local! {
    static IS_CAPTURE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs `job` on a capture thread and waits for it; on such a thread, at once.
///
/// # Errors
/// Errors of `job`, and [`Error::Panicked`] if it panics.
pub(crate) fn run<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if IS_CAPTURE_THREAD.get() {
        return caught(job);
    }
    CaptureThread::take()?.run(job)
}

/// A capture thread; it is free again when this is dropped.
pub(crate) struct CaptureThread(Sender<Job>);

impl CaptureThread {
    /// A free thread, or a new one.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn take() -> Result<Self> {
        if let Some(free) = FREE.lock().pop() {
            return Ok(Self(free));
        }
        let (sender, jobs) = channel::<Job>();
        let work = move || {
            IS_CAPTURE_THREAD.set(true);
            // A pool of its own for candle's loops, since the threads of the global pool may all wait for this thread. If it
            // cannot be built, candle uses the global pool.
            let _pool = rayon::ThreadPoolBuilder::new().use_current_thread().build();
            run_nested(|| jobs.into_iter().for_each(|job| job()));
        };
        let started = std::thread::Builder::new().name("opara-capture".into()).spawn(work);
        started.map_err(|error| Error::NotCapturable { reason: format!("no thread for captures: {error}") })?;
        Ok(Self(sender))
    }

    /// Runs `job` on this thread after all that was posted before, and waits for it.
    ///
    /// # Errors
    /// Errors of `job`, and [`Error::Panicked`] if it panics.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let (sender, result) = channel();
        let (job, folder) = (inherited(job), choice_folder::current());
        let job = move || choice_folder::within(folder, job);
        self.post(move || drop(sender.send(caught(job))));
        result.recv().unwrap_or_else(|_| unreachable!("a job that panics is caught, and the thread never ends"))
    }

    /// Runs `job`, which does not panic, on this thread after all that was posted before.
    pub fn post(&self, job: impl FnOnce() + Send + 'static) {
        if self.0.send(Box::new(job)).is_err() {
            unreachable!("the thread never ends");
        }
    }
}

impl Drop for CaptureThread {
    fn drop(&mut self) {
        FREE.lock().push(self.0.clone());
    }
}
