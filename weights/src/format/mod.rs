//! Parsers for the formats of weights files.

mod pickle;
mod pytorch;
mod safetensors;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use ::safetensors::Dtype;
use candle::Layout;

use crate::WeightsError;

/// A file's tensors by name.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// A tensor's entry in a file, validated against the file size.
#[derive(Debug)]
pub(crate) struct Entry {
    pub dtype: Dtype,
    /// Shape and strides in elements, relative to the first element of `bytes`.
    pub layout: Layout,
    /// The tensor's byte range in the file.
    pub bytes: Range<u64>,
}

/// An error in a file, without the file's name.
enum Flaw {
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

/// Reads the entries of all tensors in the file at `path`. A name that ends in `.safetensors` selects that format; all
/// other files are PyTorch's.
pub(crate) fn entries(path: &Path) -> Result<Entries, WeightsError> {
    let read = || {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        match path.extension() {
            Some(extension) if extension == "safetensors" => safetensors::entries(file, size),
            _ => pytorch::entries(file, size),
        }
    };
    read().map_err(|flaw| match flaw {
        Flaw::Unreadable(source) => WeightsError::Read { path: path.to_path_buf(), source },
        Flaw::Malformed(reason) => WeightsError::Malformed { path: path.to_path_buf(), reason },
    })
}

/// The number of elements, with dimensions of zero ignored. A zero would hide an overflow of the other dimensions from
/// a size check, but not from the computation of strides.
fn extent(shape: &[usize]) -> Option<usize> {
    shape.iter().filter(|dim| **dim != 0).try_fold(1usize, |n, dim| n.checked_mul(*dim))
}
