//! The program on traces of the repository.

mod answers;
mod usage;

use assert_cmd::assert::Assert;
use assert_cmd::Command;
use serde_json::Value;

/// The path of a recorded trace.
pub fn trace(name: &str) -> String {
    format!("{}/../tests/data/{name}.trace", env!("CARGO_MANIFEST_DIR"))
}

/// Runs the program to its end.
pub fn opara(args: &[&str]) -> Assert {
    Command::new(env!("CARGO_BIN_EXE_opara")).args(args).assert()
}

/// The program's answer with `--json`.
pub fn json(args: &[&str]) -> Value {
    let answer = opara(&[args, &["--json"]].concat()).success();
    serde_json::from_slice(&answer.get_output().stdout).unwrap()
}
