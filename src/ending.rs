//! Exit codes of the programs.

use std::io::{self, stderr, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Error, Result};

/// Computes a program's exit code. An error is printed on stderr with its causes, and the code is 1. It is not an error
/// if the reader of stdout has exited, as `| head -1` does.
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Err(error) if !reader_left(&error) => {
            // If stderr is closed the error cannot be printed.
            let _ = writeln!(stderr(), "Error: {error:?}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Is this the error of writing to a pipe whose reader has exited?
pub fn reader_left(error: &Error) -> bool {
    let of_writing = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        // An error of `csv` holds its cause as a kind.
        let of_csv = cause.downcast_ref::<csv::Error>().map(csv::Error::kind);
        cause.downcast_ref().is_some_and(of_writing)
            || matches!(of_csv, Some(csv::ErrorKind::Io(error)) if of_writing(error))
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{anyhow, Context};

    use super::*;

    #[test]
    fn only_broken_pipes_are_ignored() {
        let pipe = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(reader_left(&pipe().into()));
        assert!(reader_left(&csv::Error::from(pipe()).into()));
        assert!(reader_left(&Err::<(), _>(pipe()).context("cannot print").unwrap_err()));
        for other in [anyhow!("Broken pipe"), io::Error::from(ErrorKind::NotFound).into()] {
            assert!(!reader_left(&other), "{other}");
        }
    }
}
