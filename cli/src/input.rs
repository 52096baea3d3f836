//! Traces and results in files.

use std::fs::File;
use std::io::{sink, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::trace::Trace;

/// The trace that a subcommand reads; flatten it into its arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Input {
    /// A recorded trace: a trace file, or JSON if its name ends in `.json`.
    pub trace: PathBuf,
}

impl Input {
    /// The trace.
    ///
    /// # Errors
    /// A file that cannot be read or is no trace.
    pub fn load(&self) -> Result<Trace> {
        load(&self.trace)
    }
}

/// Reads a trace file, or JSON if the name ends in `.json`.
///
/// # Errors
/// A file that cannot be read or is no trace.
pub fn load(path: &Path) -> Result<Trace> {
    if !is_json(path) {
        return Ok(Trace::load(path)?);
    }
    let told = || format!("trace `{}`", path.display());
    let file = File::open(path).with_context(told)?;
    let trace: Trace = serde_json::from_reader(BufReader::new(file)).with_context(told)?;
    // Later stages rely on the limits of the file format.
    trace.write_to(sink()).with_context(told)?;
    Ok(trace)
}

/// Does the file's name end in `.json`?
pub fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Prepares a trace like an executor with default settings.
pub fn prepare(trace: &Trace) -> Prepared {
    Prepared::new(trace, Settings::default())
}

/// Writes a file, replacing an existing one.
///
/// # Errors
/// A file that cannot be written; the error contains its name.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("cannot write `{}`", path.display()))
}
