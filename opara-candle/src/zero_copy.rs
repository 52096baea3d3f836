//! Zero-copy outputs: a closure borrows an executor's own output buffers. This file knows inside which closures a thread is.

use std::cell::RefCell;

use crate::output_lock::{HeldOutputs, OutputLock};
use crate::shapes::Key;
use crate::{Error, Result};

thread_local! {
    /// Executor and input shapes of every zero-copy closure that this thread is inside of.
    static BORROWED: RefCell<Vec<(u64, Key)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, a closure that borrows the outputs of this executor for inputs of these shapes.
pub(crate) fn with_borrowed<T>(executor: u64, key: &Key, f: impl FnOnce() -> T) -> T {
    struct Return;
    impl Drop for Return {
        fn drop(&mut self) {
            BORROWED.with_borrow_mut(|borrowed| borrowed.pop());
        }
    }
    BORROWED.with_borrow_mut(|borrowed| borrowed.push((executor, key.clone())));
    let _return = Return;
    f()
}

/// Is this thread inside a closure that borrows the outputs of this executor for inputs of these shapes?
pub(crate) fn is_borrowed(executor: u64, key: &Key) -> bool {
    BORROWED.with_borrow(|borrowed| borrowed.iter().any(|(of, shapes)| *of == executor && shapes == key))
}

/// Is this thread inside any zero-copy closure?
fn is_inside() -> bool {
    BORROWED.with_borrow(|borrowed| !borrowed.is_empty())
}

/// Waits until the output buffers of this lock are free, and takes them.
///
/// # Errors
/// [`Error::OutputsBorrowed`] if a closure holds them and this thread is inside a closure, too.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU every call has outputs of its own"))]
pub(crate) fn take_outputs(outputs: &OutputLock) -> Result<HeldOutputs<'_>> {
    outputs.take(is_inside()).ok_or(Error::OutputsBorrowed)
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
    fn outputs_are_borrowed_by_executor_and_shapes_until_the_closure_ends() {
        with_borrowed(1, &key(2), || {
            with_borrowed(2, &key(3), || assert!(is_borrowed(1, &key(2)) && is_borrowed(2, &key(3))));
            assert!(is_borrowed(1, &key(2)) && !is_borrowed(1, &key(3)) && !is_borrowed(2, &key(3)) && is_inside());
        });
        assert!(!is_inside());
        let panics = std::panic::catch_unwind(|| with_borrowed(1, &key(2), || panic!("a closure's panic")));
        assert!(panics.is_err() && !is_inside());
    }

    /// Two threads are each inside a closure of one executor and call the other executor.
    #[test]
    fn a_closure_does_not_wait_for_another_closure() -> anyhow::Result<()> {
        let locks = [OutputLock::default(), OutputLock::default()];
        let both = Barrier::new(2);
        let cross = |own: usize| -> Result<bool> {
            let held = take_outputs(&locks[own])?;
            held.pass_to_closure();
            Ok(with_borrowed(own as u64, &key(1), || {
                both.wait();
                let refused = matches!(take_outputs(&locks[1 - own]), Err(Error::OutputsBorrowed));
                both.wait();
                refused
            }))
        };
        let refused = thread::scope(|scope| {
            let other = scope.spawn(|| cross(1));
            Ok::<_, Error>([cross(0)?, other.join().expect("no panic")?])
        })?;
        assert_eq!(refused, [true, true]);
        assert!(locks.iter().all(|lock| take_outputs(lock).is_ok()), "both are free again");
        Ok(())
    }

    #[test]
    fn a_closure_waits_for_a_call_but_not_for_its_closure() -> anyhow::Result<()> {
        let lock = OutputLock::default();
        let held = take_outputs(&lock)?;
        let (started, starts) = channel::<()>();
        let outcome = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                with_borrowed(1, &key(1), || {
                    drop(started);
                    take_outputs(&lock).map(drop)
                })
            });
            assert!(starts.recv().is_err(), "the other thread runs");
            held.pass_to_closure();
            waiting.join().expect("no panic")
        });
        assert!(matches!(outcome, Err(Error::OutputsBorrowed)));
        Ok(())
    }

    #[test]
    fn calls_wait_until_a_closure_returns() -> anyhow::Result<()> {
        let lock = OutputLock::default();
        let held = take_outputs(&lock)?;
        held.pass_to_closure();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take_outputs(&lock).map(drop));
            drop(held);
            waiting.join().expect("no panic")
        })?;
        Ok(())
    }
}
