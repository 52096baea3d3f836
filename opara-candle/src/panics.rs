//! Turns panics into errors.

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::{Error, Result};

/// Runs `f`; a panic becomes [`Error::Panicked`].
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    caught_as(|message| Error::Panicked { message }, f)
}

/// Runs `f`; `error` converts a panic's message to an error.
pub(crate) fn caught_as<T>(error: impl FnOnce(String) -> Error, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(error(panic_message(&*payload))))
}

/// The message of a caught panic.
fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
