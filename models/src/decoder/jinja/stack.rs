//! A stack that is large enough for what templates nest: macros that call themselves, and expressions of expressions.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::{scope, Builder};

use minijinja::{Error, ErrorKind};

/// For values, and macros that call each other.
const BASE: usize = 128 << 20;

/// For each byte of a template that is parsed: `-` in front of an expression is one more level. It is reserved, and hardly ever used.
const PER_BYTE: usize = if cfg!(debug_assertions) { 8 << 10 } else { 2 << 10 };

/// Does something on a thread with a stack for parsing so many bytes.
pub(super) fn deep<T: Send>(bytes: usize, job: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    scope(|scope| {
        let thread = Builder::new().name("chat template".into()).stack_size(BASE + bytes * PER_BYTE);
        let thread = thread.spawn_scoped(scope, job);
        let thread = thread.map_err(|error| failed(&format!("there is no thread for the template: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

/// Does something on this thread.
pub(super) fn shallow<T>(job: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| Err(panicked()))
}

fn failed(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

fn panicked() -> Error {
    failed("an operation of the template panicked")
}
