//! A weights file of a checkpoint.

use std::path::PathBuf;

/// One weights file of a checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    /// The tensors that the index assigns to this file; `None` without an index means all.
    pub(crate) names: Option<Vec<String>>,
}
