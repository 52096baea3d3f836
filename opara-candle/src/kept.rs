//! Files that are kept from one start of a program to the next.

use std::io::{Result, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::NamedTempFile;

/// `opara-candle` in the user's folder for caches; `None` where there is no such folder.
pub(crate) fn folder() -> Option<PathBuf> {
    dirs::cache_dir().map(|folder| folder.join("opara-candle"))
}

/// Keeps a file in a folder that is made for it. That it cannot be kept is only warned of, once in a process: an
/// executor keeps several, for most of which the same would be said.
pub(crate) fn keep(file: &Path, bytes: &[u8]) {
    let write = || -> Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        // Renamed when it is whole: another process may be reading.
        let mut whole = NamedTempFile::new_in(folder)?;
        whole.write_all(bytes)?;
        whole.persist(file)?;
        Ok(())
    };
    static WARNED: Once = Once::new();
    if let Err(error) = write() {
        WARNED.call_once(|| {
            let file = file.display();
            tracing::warn!(%file, %error, "plans and kernels cannot be kept for the next start");
        });
    }
}
