//! A check of output files before long work.

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::{Context, Result};

/// Checks that a file can be written. Leaves it unchanged.
///
/// # Errors
/// A file that cannot be written, with its path.
pub fn check_writable(path: &Path) -> Result<()> {
    let cannot = || format!("cannot write `{}`", path.display());
    let existed = path.exists();
    OpenOptions::new().append(true).create(true).open(path).with_context(cannot)?;
    if !existed {
        fs::remove_file(path).with_context(cannot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_as_they_are() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, "content")?;
        check_writable(&old)?;
        check_writable(&new)?;
        assert!(fs::read_to_string(&old)? == "content" && !new.exists());
        for unwritable in [folder.path(), &folder.path().join("nowhere/file")] {
            let error = check_writable(unwritable).expect_err("not writable").to_string();
            assert!(error.contains("cannot write") && error.contains(&unwritable.display().to_string()), "{error}");
        }
        Ok(())
    }
}
