//! Errors of this crate: invalid traces, files, schedules and memory layouts.

use crate::trace::{InvalidTrace, TraceFileError};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a trace could not be planned, or a plan is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace is inconsistent.
    #[error(transparent)]
    InvalidTrace(#[from] InvalidTrace),

    /// A trace file could not be read or written.
    #[error(transparent)]
    TraceFile(#[from] TraceFileError),

    /// A schedule violates a dependency of its graph.
    #[error("invalid schedule: {0}")]
    InvalidSchedule(String),

    /// A memory layout lets two live buffers overlap.
    #[error("invalid memory layout: {0}")]
    InvalidLayout(String),
}
