//! What the library takes from parking_lot, of loom.

use std::ops::{Deref, DerefMut};

pub use loom::sync::atomic::AtomicBool;

const UNPOISONED: &str = "no thread panics";

#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(UNPOISONED)))
    }
}

/// Empty while its thread waits at a [`Condvar`].
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("a guard that does not wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a guard that does not wait")
    }
}

pub struct Condvar(loom::sync::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self(loom::sync::Condvar::new())
    }
}

impl Condvar {
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let waits = guard.0.take().expect("a guard that does not wait");
        guard.0 = Some(self.0.wait(waits).expect(UNPOISONED));
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
