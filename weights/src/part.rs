//! The files that the weights of a checkpoint are in.

use std::path::PathBuf;

/// One weights file.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    /// The tensors that the index looks for here; without an index, all.
    pub(crate) names: Option<Vec<String>>,
}
