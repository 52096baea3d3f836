//! Errors of trace files, with the position in the file.

use std::io;
use std::path::PathBuf;

use super::super::InvalidTrace;

/// An error of a trace file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It could not be opened or read.
    #[error("reading failed at byte {offset}: {source}")]
    Read {
        /// Number of bytes read before.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },

    /// It could not be written.
    #[error("writing failed: {0}")]
    Write(#[source] io::Error),

    /// It is not a trace file.
    #[error("its first bytes are not those of a trace file")]
    Foreign,

    /// Its format is newer than this build.
    #[error("its format version is {found} and this build reads versions up to {supported}: update opara-candle")]
    NewerVersion {
        /// The file's version.
        found: u16,
        /// The newest version that this build reads.
        supported: u16,
    },

    /// It has a mandatory section that this build does not know.
    #[error(
        "section `{section}` at byte {offset} is needed to understand the trace and this build does not know it: \
         update opara-candle"
    )]
    UnknownSection {
        /// Its tag.
        section: String,
        /// Its first byte in the file.
        offset: u64,
    },

    /// It ends too early.
    #[error("it ends at byte {offset}, before the trace does: it was cut short")]
    Truncated {
        /// Its length in bytes.
        offset: u64,
    },

    /// The framing of the sections is damaged.
    #[error("damaged at byte {offset}: {reason}")]
    Damaged {
        /// The first damaged byte.
        offset: u64,
        /// A description of the damage.
        reason: String,
    },

    /// A section is intact, but its content is invalid.
    #[error("section `{section}`, entry {entry} (before byte {offset} of its content): {reason}")]
    Content {
        /// Its tag.
        section: String,
        /// Index of the buffer, op or string in the section.
        entry: usize,
        /// Bytes of its decompressed content that were read so far.
        offset: usize,
        /// A description of the fault.
        reason: String,
    },

    /// A mandatory section is missing.
    #[error("it has no section `{section}`")]
    MissingSection {
        /// The tag.
        section: String,
    },

    /// A number beyond the limits, which protect later stages from overflows and from running out of memory.
    #[error("{what}: {found} is above the limit of {limit}")]
    Limit {
        /// The counted quantity, and its place.
        what: String,
        /// The value.
        found: u128,
        /// The limit.
        limit: u64,
    },

    /// The trace contradicts itself.
    #[error(transparent)]
    Invalid(InvalidTrace),
}

/// A trace file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("trace file `{}`: {source}", path.display())]
pub struct TraceFileError {
    /// The file.
    pub path: PathBuf,
    /// The cause, with its position in the file.
    pub source: FileError,
}
