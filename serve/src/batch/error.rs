//! Why a request has no answer.

use std::time::Duration;

use super::engine_error::EngineError;

/// Result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue is full.
    #[error("the queue is full: try again in {} s", retry_after.as_secs())]
    Full {
        /// When there should be room, as far as can be told from the queue and the speed of late.
        retry_after: Duration,
    },

    /// A request has more rows than the queue may ever hold.
    #[error("the request has {rows} rows, and at most {limit} are taken: send several requests")]
    TooManyRows {
        /// Rows of the request.
        rows: usize,
        /// Rows that the queue holds.
        limit: usize,
    },

    /// A row is longer than every bucket.
    #[error("row {row} has {length} tokens, and at most {limit} are taken")]
    TooLong {
        /// Which row of the request.
        row: usize,
        /// Its tokens.
        length: usize,
        /// Tokens that a row may have.
        limit: usize,
    },

    /// The deadline passed before there was an answer.
    #[error("the deadline passed before the answer was there")]
    Deadline,

    /// The batcher takes no more requests, since it was asked to stop.
    #[error("the model is being taken out of service")]
    Draining,

    /// Every device of the model is lost.
    #[error("the model has no device left to run on")]
    NoDevice,

    /// The engine panicked on the batch.
    #[error("the model panicked on the batch that this request was part of")]
    Panicked,

    /// The engine failed on the batch.
    #[error("the model failed: {0}")]
    Engine(EngineError),

    /// Buckets that contradict each other.
    #[error("{0}")]
    Buckets(String),
}
