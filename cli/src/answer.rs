//! Answers on stdout, errors in one line.

use std::fmt::Display;
use std::io::{stdout, ErrorKind, Write};

use anyhow::Result;
use serde::Serialize;

/// Prints an answer as text or as JSON.
///
/// # Errors
/// An I/O error.
pub fn print(answer: &(impl Serialize + Display), json: bool) -> Result<()> {
    let mut text = if json { serde_json::to_string_pretty(answer)? } else { answer.to_string() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Was stdout closed by its reader, as by `opara ... | head`?
pub fn nobody_reads(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An error and its causes, without causes that the error before them already quotes.
pub fn told(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |told, cause| {
        if told.ends_with(&cause) {
            told
        } else {
            format!("{told}: {cause}")
        }
    })
}
