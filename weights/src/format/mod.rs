//! Parsers for the formats of weights files.

mod entry;
mod flaw;
mod pickle;
mod pytorch;
mod safetensors;

use std::fs::File;
use std::path::Path;

pub(crate) use self::entry::{Entries, Entry};
use self::flaw::Flaw;
use crate::WeightsError;

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
