//! The trace file: a versioned and compressed file with checksums. `docs/trace-format.md` describes its layout.
//!
//! Files are untrusted input. Lengths are compared with the remaining bytes, decompression stops at the declared length, every count
//! has a limit, and [`Trace::validate`] checks the result.

mod decode;
mod encode;
mod error;
mod head;
mod limits;
mod record;
mod section;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::Trace;

pub use error::{FileError, TraceFileError};

impl Trace {
    /// Writes the trace to a file, replacing an existing one.
    ///
    /// # Errors
    /// [`TraceFileError`] with the path, if the file cannot be written, or [`load`](Trace::load) would refuse
    /// the trace.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TraceFileError> {
        let path = path.as_ref();
        // Encoded first: a trace that cannot be written leaves the old file as it was.
        encode::encode(self)
            .and_then(|bytes| std::fs::write(path, bytes).map_err(FileError::Write))
            .map_err(|source| TraceFileError { path: path.into(), source })
    }

    /// A hash of the trace without what differs from one recording of it to the next: times and labels.
    ///
    /// # Errors
    /// [`FileError`], if the trace is beyond the limits of trace files.
    pub fn fingerprint(&self) -> Result<u128, FileError> {
        let mut trace = self.clone();
        trace.ops.iter_mut().for_each(|op| (op.nanos, op.label) = (None, String::new()));
        let mut hash = Xxh3::new();
        for (tag, content) in encode::contents(&trace)? {
            hash.update(&tag.0);
            hash.update(&content);
        }
        Ok(hash.digest128())
    }

    /// Reads a trace from a file that [`save`](Trace::save) wrote.
    ///
    /// # Errors
    /// [`TraceFileError`] with the path and the position in the file, if it cannot be read, is not a trace file, is damaged,
    /// was written by a newer version of this crate, or holds a trace that is not valid.
    pub fn load(path: impl AsRef<Path>) -> Result<Trace, TraceFileError> {
        let path = path.as_ref();
        File::open(path)
            .map_err(|source| FileError::Read { offset: 0, source })
            .and_then(Trace::read_from)
            .map_err(|source| TraceFileError { path: path.into(), source })
    }

    /// Writes the trace, in the file's format.
    ///
    /// # Errors
    /// [`FileError`], if the writer fails or the trace is not one that [`read_from`](Trace::read_from) would take back.
    pub fn write_to(&self, mut writer: impl Write) -> Result<(), FileError> {
        let bytes = encode::encode(self)?;
        writer.write_all(&bytes).and_then(|()| writer.flush()).map_err(FileError::Write)
    }

    /// Reads a trace that [`write_to`](Trace::write_to) wrote, up to the end of the reader; buffers by itself.
    ///
    /// It holds less than a gibibyte at any time, whatever the reader gives.
    ///
    /// # Errors
    /// [`FileError`] with the position, as for [`load`](Trace::load).
    pub fn read_from(reader: impl Read) -> Result<Trace, FileError> {
        decode::decode(reader)
    }
}
