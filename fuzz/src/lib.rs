//! Shared by the fuzz targets: files of a run, and the inputs that a run begins with.

pub mod seeds;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use candle::{DType, Device};

/// The folder that a process writes its inputs to.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder for files"));

/// Writes a file for a reader that takes a path. Each call overwrites the file of the call before.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    std::fs::write(&path, bytes).expect("the folder takes files");
    path
}

/// Requests all tensors of a weights file, as a model does.
pub fn read_weights(path: &Path) {
    let Ok(checkpoint) = opara_weights::Checkpoint::find(&path.display().to_string()) else { return };
    let Ok(loaded) = checkpoint.load(DType::F32, &Device::Cpu) else { return };
    for name in loaded.surplus() {
        // A tensor or a typed error: both are answers.
        let _ = loaded.vb.get_unchecked(&name);
    }
}
