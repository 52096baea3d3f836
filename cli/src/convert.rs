//! `opara convert`: traces as JSON, and back.

use std::fmt;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use serde::Serialize;

use crate::input;

/// Converts a trace between the file format and JSON, according to the file names: `.trace` and `.json`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The trace to read.
    from: PathBuf,

    /// The file to write.
    to: PathBuf,
}

/// The result of the conversion.
#[derive(Debug, Clone, Serialize)]
pub struct Conversion {
    from: PathBuf,
    to: PathBuf,
    ops: usize,
    buffers: usize,
    bytes: usize,
}

impl Args {
    /// Reads and writes.
    ///
    /// # Errors
    /// A file that cannot be read, is no trace, or cannot be written; another file name extension.
    pub fn run(&self) -> Result<Conversion> {
        let trace = input::load(&self.from)?;
        let content = if input::is_json(&self.to) {
            serde_json::to_vec(&trace)?
        } else if self.to.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("trace")) {
            let mut file = Vec::new();
            trace.write_to(&mut file).with_context(|| format!("trace `{}`", self.from.display()))?;
            file
        } else {
            bail!("`{}` should end in `.trace` or `.json`, which says what to write", self.to.display());
        };
        input::write(&self.to, &content)?;
        let (from, to) = (self.from.clone(), self.to.clone());
        Ok(Conversion { from, to, ops: trace.ops.len(), buffers: trace.buffers.len(), bytes: content.len() })
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, ops, buffers, bytes } = self;
        let (from, to) = (from.display(), to.display());
        writeln!(f, "{from} -> {to}: {ops} ops, {buffers} buffers, {bytes} bytes")
    }
}
