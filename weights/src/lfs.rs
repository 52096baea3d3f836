//! Detection of Git LFS pointers: small text files that take the place of large files that were not fetched.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::WeightsError;

const START: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Checks that a file is not a pointer. A file that cannot be read passes; reading it later reports the error.
///
/// # Errors
/// [`WeightsError::LfsPointer`].
pub(crate) fn check(path: &Path) -> Result<(), WeightsError> {
    let mut start = [0; START.len()];
    match File::open(path).and_then(|mut file| file.read_exact(&mut start)) {
        Ok(()) if start == *START => Err(WeightsError::LfsPointer { path: path.to_path_buf() }),
        _ => Ok(()),
    }
}
