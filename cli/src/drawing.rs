//! Pictures and files for other tools: into a file, or as the answer itself.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

use crate::input;

/// What was drawn.
#[derive(Debug, Clone, Serialize)]
pub struct Drawing {
    file: Option<PathBuf>,
    bytes: usize,
    /// Where no file was asked for.
    content: Option<String>,
}

impl Drawing {
    /// Writes `content` into a file if there is one, and else keeps it.
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
