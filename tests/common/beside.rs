//! Work on concurrent threads: repeated while something runs, or on request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{anyhow, Context, Result};
use parking_lot::Mutex;

/// Work of a concurrent thread. The argument is the round number.
pub type Round<'a> = &'a (dyn Fn(usize) -> Result<()> + Sync);

/// Runs `work`, while each of `others` runs repeatedly on a thread of its own, at least twice.
///
/// # Errors
/// An error of `work`, and the first error of each of the others, which ends its rounds.
pub fn beside<T>(work: impl FnOnce() -> Result<T>, others: &[Round]) -> Result<T> {
    /// Ends the rounds of the others, even if `work` panics.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    const LEAST: usize = 2;
    let done = AtomicBool::new(false);
    let rounds = |other: Round| -> Result<()> {
        for round in 0.. {
            if round >= LEAST && done.load(Ordering::Relaxed) {
                break;
            }
            other(round).with_context(|| format!("round {round} of a concurrent thread"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = others.iter().map(|other| scope.spawn(move || rounds(*other))).collect();
        let ending = Done(&done);
        let result = work();
        drop(ending);
        let beside = threads.into_iter().map(|thread| thread.join().expect("no panic on a concurrent thread"));
        let failed: Vec<String> = beside.filter_map(|result| result.err().map(|error| format!("{error:#}"))).collect();
        match (result, &failed[..]) {
            (result, []) => result,
            (Ok(_), failed) => Err(anyhow!("{}", failed.join("; "))),
            (Err(error), failed) => Err(error.context(failed.join("; "))),
        }
    })
}

/// A thread that does a piece of work when another thread requests it and waits for it. A module that requests it in
/// its forward pass has the work done in the middle of a capture.
pub struct Meanwhile {
    line: Mutex<Option<Line>>,
    outcomes: Mutex<Vec<Result<()>>>,
}

/// Requests, answers, and the worker thread.
type Line = (Sender<()>, Receiver<Result<()>>, JoinHandle<()>);

impl Meanwhile {
    /// Starts the thread. The argument of `work` is the request number.
    pub fn new(mut work: impl FnMut(usize) -> Result<()> + Send + 'static) -> Arc<Self> {
        let ((ask, asked), (answer, answered)) = (channel(), channel());
        let thread = thread::spawn(move || {
            for (i, ()) in asked.into_iter().enumerate() {
                // If the requesting thread has panicked, nothing receives the last answer.
                let _ = answer.send(work(i));
            }
        });
        Arc::new(Self { line: Mutex::new(Some((ask, answered, thread))), outcomes: Mutex::default() })
    }

    /// Requests the work once. Its error is kept for [`finish`](Self::finish).
    pub fn ask(&self) {
        let line = self.line.lock();
        let outcome = line.as_ref().ok_or(()).and_then(|(ask, answers, _)| {
            ask.send(()).map_err(|_| ())?;
            answers.recv().map_err(|_| ())
        });
        self.outcomes.lock().push(outcome.unwrap_or_else(|()| Err(anyhow!("the thread panicked"))));
    }

    /// Ends the thread. Returns the number of requests.
    ///
    /// # Errors
    /// The first error of the work.
    pub fn finish(&self) -> Result<usize> {
        if let Some((ask, _, thread)) = self.line.lock().take() {
            drop(ask);
            thread.join().map_err(|_| anyhow!("the thread panicked"))?;
        }
        let outcomes = std::mem::take(&mut *self.outcomes.lock());
        let requests = outcomes.len();
        for (i, outcome) in outcomes.into_iter().enumerate() {
            outcome.with_context(|| format!("request {i} of {requests} to another thread"))?;
        }
        Ok(requests)
    }
}
