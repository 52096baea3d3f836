//! Work on other threads: again and again for as long as something takes, or whenever it is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;

use anyhow::{anyhow, Context, Result};
use parking_lot::Mutex;

/// Work of a thread beside: it is given the number of the round.
pub type Round<'a> = &'a (dyn Fn(usize) -> Result<()> + Sync);

/// Runs `work` while each of `others` runs again and again on a thread of its own, at least twice.
///
/// # Errors
/// Those of `work`, and the first of each of the others, which ends its rounds.
pub fn beside<T>(work: impl FnOnce() -> Result<T>, others: &[Round]) -> Result<T> {
    /// Ends the others' rounds, even if `work` panics.
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
            other(round).with_context(|| format!("round {round} of a thread beside"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = others.iter().map(|other| scope.spawn(move || rounds(*other))).collect();
        let ending = Done(&done);
        let result = work();
        drop(ending);
        let beside = threads.into_iter().map(|thread| thread.join().expect("no panic beside"));
        let failed: Vec<String> = beside.filter_map(|result| result.err().map(|error| format!("{error:#}"))).collect();
        match (result, &failed[..]) {
            (result, []) => result,
            (Ok(_), failed) => Err(anyhow!("{}", failed.join("; "))),
            (Err(error), failed) => Err(error.context(failed.join("; "))),
        }
    })
}

/// A thread that does a piece of work whenever another thread asks for it, which waits until it is done: a module that
/// asks in its forward pass has that work done in the middle of a capture.
pub struct Meanwhile {
    line: Mutex<(Sender<()>, Receiver<Result<()>>)>,
    outcomes: Mutex<Vec<Result<()>>>,
}

impl Meanwhile {
    /// Starts the thread. `work` is given the number of the request.
    pub fn new(mut work: impl FnMut(usize) -> Result<()> + Send + 'static) -> Arc<Self> {
        let ((ask, asked), (answer, answered)) = (channel(), channel());
        thread::spawn(move || {
            for (i, ()) in asked.into_iter().enumerate() {
                // Nobody waits for the last answer if the asking thread has panicked.
                let _ = answer.send(work(i));
            }
        });
        Arc::new(Self { line: Mutex::new((ask, answered)), outcomes: Mutex::default() })
    }

    /// Has the work done once. Its error is kept for [`finish`](Self::finish).
    pub fn ask(&self) {
        let line = self.line.lock();
        let asked = line.0.send(()).map_err(|_| ());
        let outcome = asked.and_then(|()| line.1.recv().map_err(|_| ()));
        self.outcomes.lock().push(outcome.unwrap_or_else(|()| Err(anyhow!("the thread panicked"))));
    }

    /// How often the work was done so far.
    ///
    /// # Errors
    /// The first of the work.
    pub fn finish(&self) -> Result<usize> {
        let outcomes = std::mem::take(&mut *self.outcomes.lock());
        let requests = outcomes.len();
        for (i, outcome) in outcomes.into_iter().enumerate() {
            outcome.with_context(|| format!("request {i} of {requests} to another thread"))?;
        }
        Ok(requests)
    }
}
