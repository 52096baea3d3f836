//! What templates are refused for.

use minijinja::{Error, ErrorKind};

/// An operation that Python refuses as well.
pub(super) fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}
