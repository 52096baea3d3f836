//! What can go wrong without a device: traces, files, schedules and layouts that are not sound.

use crate::trace::{InvalidTrace, TraceFileError};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a trace could not be planned, or a plan is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A trace that contradicts itself.
    #[error(transparent)]
    InvalidTrace(#[from] InvalidTrace),

    /// A trace file could not be read or written.
    #[error(transparent)]
    TraceFile(#[from] TraceFileError),

    /// A schedule that does not respect its graph.
    #[error("invalid schedule: {0}")]
    InvalidSchedule(String),

    /// A memory layout that lets two live buffers overlap.
    #[error("invalid memory layout: {0}")]
    InvalidLayout(String),
}
