//! Drawings and files for other tools: written to a file, or printed as the answer.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

use crate::input;

/// A drawing.
#[derive(Debug, Clone, Serialize)]
pub struct Drawing {
    file: Option<PathBuf>,
    bytes: usize,
    /// The content, if it was not written to a file.
    content: Option<String>,
}

impl Drawing {
    /// Writes `content` to a file if there is one, and keeps it otherwise.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn new(content: String, file: Option<&Path>) -> Result<Self> {
        let bytes = content.len();
        let content = match file {
            Some(path) => {
                input::write(path, content.as_bytes())?;
                None
            }
            None => Some(content),
        };
        Ok(Self { file: file.map(Into::into), bytes, content })
    }
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.content) {
            (Some(path), _) => writeln!(f, "wrote {} ({} bytes)", path.display(), self.bytes),
            (None, content) => f.write_str(content.as_deref().unwrap_or_default()),
        }
    }
}
