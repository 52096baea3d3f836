//! What the library takes from parking_lot, of loom.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub use loom::sync::atomic::AtomicBool;

const UNPOISONED: &str = "no thread panics";

#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { of: self, held: Some(self.0.lock().expect(UNPOISONED)) }
    }
}

pub struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    /// Empty while its thread waits at a [`Condvar`].
    held: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("a guard that does not wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("a guard that does not wait")
    }
}

pub struct Condvar(loom::sync::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self(loom::sync::Condvar::new())
    }
}

thread_local! {
    /// How many waits for some time end by themselves, before anybody notifies; the others do not. loom runs all threads of a model on
    /// one.
    static TIMEOUTS: Cell<usize> = const { Cell::new(0) };
}

/// Sets how many of a model's waits for some time end by themselves.
pub fn set_timeouts(timeouts: usize) {
    TIMEOUTS.set(timeouts);
}

/// How a wait for some time ended.
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        let timeouts = TIMEOUTS.get();
        if timeouts > 0 {
            TIMEOUTS.set(timeouts - 1);
            guard.held = None;
            loom::thread::yield_now();
            guard.held = guard.of.lock().held;
        } else {
            self.wait(guard);
        }
        WaitTimeoutResult(timeouts > 0)
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let waits = guard.held.take().expect("a guard that does not wait");
        guard.held = Some(self.0.wait(waits).expect(UNPOISONED));
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub fn read(&self) -> loom::sync::RwLockReadGuard<'_, T> {
        self.0.read().expect(UNPOISONED)
    }

    pub fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().expect(UNPOISONED)
    }
}
