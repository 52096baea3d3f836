//! Why a trace file could not be read or written, and where in it.

use std::io;
use std::path::PathBuf;

use super::super::InvalidTrace;

/// What is wrong with a trace file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It could not be opened or read.
    #[error("reading failed at byte {offset}: {source}")]
    Read {
        /// Bytes read before.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },

    /// It could not be written.
    #[error("writing failed: {0}")]
    Write(#[source] io::Error),

    /// Another kind of file.
    #[error("its first bytes are not those of a trace file")]
    Foreign,

    /// Written in a format that came after this build.
    #[error("its format version is {found} and this build reads versions up to {supported}: update opara-candle")]
    NewerVersion {
        /// The file's version.
        found: u16,
        /// The newest version that this build reads.
        supported: u16,
    },

    /// It has a section without which the trace means something else, and which this build does not know.
    #[error(
        "section `{section}` at byte {offset} is needed to understand the trace and this build does not know it: \
         update opara-candle"
    )]
    UnknownSection {
        /// Its tag.
        section: String,
        /// Where it begins.
        offset: u64,
    },

    /// It ends too early.
    #[error("it ends at byte {offset}, before the trace does: it was cut short")]
    Truncated {
        /// Bytes that are there.
        offset: u64,
    },

    /// The frame around the sections is broken.
    #[error("damaged at byte {offset}: {reason}")]
    Damaged {
        /// Where the broken part begins.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },

    /// A section is intact and says something impossible.
    #[error("section `{section}`, entry {entry} (before byte {offset} of its content): {reason}")]
    Content {
        /// Its tag.
        section: String,
        /// Which buffer, op or string of it.
        entry: usize,
        /// How far its decompressed content was read.
        offset: usize,
        /// What is wrong there.
        reason: String,
    },

    /// It has no section of a kind that every trace needs.
    #[error("it has no section `{section}`")]
    MissingSection {
        /// The tag.
        section: String,
    },

    /// A number beyond every real trace, from which later stages could run out of memory or overflow.
    #[error("{what}: {found} is above the limit of {limit}")]
    Limit {
        /// What is counted, and where.
        what: String,
        /// How much of it there is.
        found: u128,
        /// How much there may be.
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
    /// What is wrong with it, and where.
    pub source: FileError,
}
