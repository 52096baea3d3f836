//! Tokenizers of checkpoints.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use tokenizers::{Result, Tokenizer};

/// The tokenizer of a `tokenizer.json`, without truncation and padding, which files keep of their last use: whoever wants them asks for
/// them.
///
/// # Errors
/// A file that cannot be read, or that is no tokenizer.
pub fn load(path: &Path) -> Result<Tokenizer> {
    guarded(|| {
        let mut tokenizer = Tokenizer::from_file(path)?;
        tokenizer.with_padding(None).with_truncation(None)?;
        Ok(tokenizer)
    })
}

/// What a call of a tokenizer gives. Damaged files make `tokenizers` panic in places: that is an error here.
///
/// # Errors
/// Those of the call, and panics.
pub fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("it panicked: its file is not sound".into()))
}
