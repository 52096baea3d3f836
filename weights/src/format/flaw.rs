//! Errors in a file.

use std::io;

/// An error in a file, without the file's name.
pub(super) enum Flaw {
    Unreadable(io::Error),
    Malformed(String),
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Malformed("it ends too early".to_owned()),
            // A seek to an invalid position.
            io::ErrorKind::InvalidInput => Self::Malformed(error.to_string()),
            _ if error.raw_os_error().is_some() => Self::Unreadable(error),
            // An error of the archive, not of the system: a wrong checksum, a compressed entry.
            _ => Self::Malformed(error.to_string()),
        }
    }
}

impl From<String> for Flaw {
    fn from(reason: String) -> Self {
        Self::Malformed(reason)
    }
}

impl From<&str> for Flaw {
    fn from(reason: &str) -> Self {
        Self::Malformed(reason.to_owned())
    }
}
