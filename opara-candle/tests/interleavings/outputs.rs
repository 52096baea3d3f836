//! The lock on an executor's outputs.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::thread;

use crate::output_lock::OutputLock;

/// The buffers of one shape, as a number. Only the lock orders its reads and writes.
struct Outputs {
    lock: OutputLock,
    calls: AtomicUsize,
}

impl Outputs {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: OutputLock::default(), calls: AtomicUsize::new(0) })
    }

    /// A call whose outputs a closure borrows. Returns whether it was let in.
    fn call(&self, is_inside: bool, closure: impl FnOnce()) -> bool {
        let Some(held) = self.lock.take(is_inside) else { return false };
        let before = self.calls.load(Relaxed);
        self.calls.store(before + 1, Relaxed);
        held.pass_to_closure();
        closure();
        assert_eq!(self.calls.load(Relaxed), before + 1, "another call has written to borrowed outputs");
        true
    }
}

#[test]
fn calls_hold_the_outputs_one_at_a_time() {
    let mut orders = loom::model::Builder::new();
    // All orders of three calls take minutes.
    orders.preemption_bound = Some(3);
    orders.check(|| {
        let outputs = Outputs::new();
        let call = || {
            let outputs = outputs.clone();
            thread::spawn(move || assert!(outputs.call(false, || {})))
        };
        let others = [call(), call()];
        assert!(outputs.call(false, || {}));
        for other in others {
            other.join().expect("no panic");
        }
        assert_eq!(outputs.calls.load(Relaxed), 3);
    });
}

/// One of them is inside another closure, and so is refused; the other one waits.
#[test]
fn a_closure_may_wait_for_a_closure_that_wants_its_outputs() {
    loom::model(|| {
        let outputs = Outputs::new();
        let call = |is_inside: bool| {
            let outputs = outputs.clone();
            thread::spawn(move || outputs.call(is_inside, || {}))
        };
        let held = outputs.lock.take(false).expect("nobody else");
        let (inside, outside) = (call(true), call(false));
        held.pass_to_closure();
        assert!(!inside.join().expect("no panic"), "refused");
        drop(held);
        assert!(outside.join().expect("no panic"), "let in");
    });
}

#[test]
fn closures_that_want_each_others_outputs_end() {
    loom::model(|| {
        let both = [Outputs::new(), Outputs::new()];
        let cross = |own: usize| {
            let (own, other) = (both[own].clone(), both[1 - own].clone());
            move || assert!(own.call(false, || _ = other.call(true, || {})))
        };
        let other = thread::spawn(cross(1));
        cross(0)();
        other.join().expect("no panic");
        assert!(both.iter().all(|outputs| outputs.call(false, || {})), "both are free again");
    });
}
