//! Which GGUF file is read, and how.

use std::path::{Path, PathBuf};

use opara_weights::Unread;

/// A GGUF file, or the first of several that a model is split into. Paths become one.
#[derive(Debug, Clone)]
pub struct GgufFile {
    pub(super) path: PathBuf,
    pub(super) unread: Unread,
}

impl GgufFile {
    /// Whether the model is loaded though the file has metadata or tensors that are not known and may change the answer. Warnings
    /// name them then. Without this, errors do.
    pub fn allow_unread(mut self, is_allowed: bool) -> Self {
        self.unread = Unread::allowed(is_allowed);
        self
    }
}

impl<P: AsRef<Path>> From<P> for GgufFile {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().into(), unread: Unread::Refuse }
    }
}
