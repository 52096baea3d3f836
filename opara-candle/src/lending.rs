//! Outputs that are lent to closures: which of them this thread is inside of, and whose turn it is to use them.

use std::cell::RefCell;

use parking_lot::{Condvar, Mutex};

use crate::shapes::Key;
use crate::{Error, Result};

thread_local! {
    /// Executor and shapes of every closure that this thread is inside of.
    static LENT: RefCell<Vec<(u64, Key)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, a closure that gets the outputs of this executor for inputs of these shapes.
pub(crate) fn lend<T>(executor: u64, key: &Key, f: impl FnOnce() -> T) -> T {
    struct Return;
    impl Drop for Return {
        fn drop(&mut self) {
            LENT.with_borrow_mut(|lent| lent.pop());
        }
    }
    LENT.with_borrow_mut(|lent| lent.push((executor, key.clone())));
    let _return = Return;
    f()
}

/// Whether this thread is inside a closure that gets the outputs of this executor for inputs of these shapes.
pub(crate) fn is_lent(executor: u64, key: &Key) -> bool {
    LENT.with_borrow(|lent| lent.iter().any(|(of, shapes)| *of == executor && shapes == key))
}

/// Whether this thread is inside any closure that outputs are lent to.
fn is_inside() -> bool {
    LENT.with_borrow(|lent| !lent.is_empty())
}

/// A lock on output buffers that all calls of one shape write to: held by one call at a time, and by the closure that
/// gets the outputs.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]
#[derive(Default)]
pub(crate) struct Turn {
    holder: Mutex<Holder>,
    changed: Condvar,
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    /// A call, which runs no code of the user's and so ends soon.
    Call,
    /// A closure of the user's.
    Closure,
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]
impl Turn {
    /// Waits until nobody holds the buffers, and takes them.
    ///
    /// # Errors
    /// [`Error::Lent`] if a closure holds them and this thread is inside a closure, too. Waiting could then last forever:
    /// two threads may each be inside a closure and call the executor whose outputs the other one's closure holds.
    pub fn take(&self) -> Result<Taken<'_>> {
        let mut holder = self.holder.lock();
        while *holder != Holder::Nobody {
            if *holder == Holder::Closure && is_inside() {
                return Err(Error::Lent);
            }
            self.changed.wait(&mut holder);
        }
        *holder = Holder::Call;
        Ok(Taken(self))
    }

    fn hand_to(&self, holder: Holder) {
        *self.holder.lock() = holder;
        // All: a thread inside a closure does not wait for another closure any longer.
        self.changed.notify_all();
    }
}

/// A turn, over when this is dropped.
pub(crate) struct Taken<'a>(&'a Turn);

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]
impl Taken<'_> {
    /// From now on the buffers are a closure's.
    pub fn is_a_closures(&self) {
        self.0.hand_to(Holder::Closure);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.hand_to(Holder::Nobody);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::Barrier;
    use std::thread;

    use candle::DType;

    use super::*;

    fn key(rows: usize) -> Key {
        vec![(vec![rows, 4], DType::F32)]
    }

    #[test]
    fn what_is_lent_is_known_by_executor_and_shapes_and_ends_with_the_closure() {
        lend(1, &key(2), || {
            lend(2, &key(3), || assert!(is_lent(1, &key(2)) && is_lent(2, &key(3))));
            assert!(is_lent(1, &key(2)) && !is_lent(1, &key(3)) && !is_lent(2, &key(3)) && is_inside());
        });
        assert!(!is_inside());
        let panics = std::panic::catch_unwind(|| lend(1, &key(2), || panic!("a closure's panic")));
        assert!(panics.is_err() && !is_inside());
    }

    /// As two executors that are lent crosswise.
    #[test]
    fn a_closure_does_not_wait_for_another_closure() -> anyhow::Result<()> {
        let turns = [Turn::default(), Turn::default()];
        let both = Barrier::new(2);
        let cross = |own: usize| -> Result<bool> {
            let taken = turns[own].take()?;
            taken.is_a_closures();
            Ok(lend(own as u64, &key(1), || {
                both.wait();
                let refused = matches!(turns[1 - own].take(), Err(Error::Lent));
                both.wait();
                refused
            }))
        };
        let refused = thread::scope(|scope| {
            let other = scope.spawn(|| cross(1));
            Ok::<_, Error>([cross(0)?, other.join().expect("no panic")?])
        })?;
        assert_eq!(refused, [true, true]);
        assert!(turns.iter().all(|turn| turn.take().is_ok()), "both are free again");
        Ok(())
    }

    #[test]
    fn a_closure_waits_for_a_call_until_that_lends() -> anyhow::Result<()> {
        let turn = Turn::default();
        let taken = turn.take()?;
        let (started, starts) = channel::<()>();
        let outcome = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                lend(1, &key(1), || {
                    drop(started);
                    turn.take().map(drop)
                })
            });
            assert!(starts.recv().is_err(), "the other thread runs");
            taken.is_a_closures();
            waiting.join().expect("no panic")
        });
        assert!(matches!(outcome, Err(Error::Lent)));
        Ok(())
    }

    #[test]
    fn others_wait_until_a_closure_returns() -> anyhow::Result<()> {
        let turn = Turn::default();
        let taken = turn.take()?;
        taken.is_a_closures();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| turn.take().map(drop));
            drop(taken);
            waiting.join().expect("no panic")
        })?;
        Ok(())
    }
}
