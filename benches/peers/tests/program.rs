//! The program from end to end, on the CPU and without peers.

use std::path::Path;

use anyhow::Result;
use assert_cmd::Command;
use opara_peers::results::{Outcome, Results};
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

fn peers() -> Command {
    Command::new(env!("CARGO_BIN_EXE_peers"))
}

/// A quick measurement of DeepFM, with a Python interpreter that does not exist.
fn measure(file: &Path) -> Command {
    let mut command = peers();
    command.args(["measure", "--cpu", "--models", "deepfm", "--dtypes", "f32", "--batches", "1,2", "--calls", "4"]);
    command.args(["--turn", "2", "--python", "no-such-python", "--commit", "abc", "-o"]).arg(file);
    command
}

#[test]
fn measured_results_can_be_drawn_and_compared() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("results.json");
    measure(&file)
        .args(["--only", "candle,candle tuned,candle accurate,eager,sequential,opara,torch graph"])
        .assert()
        .success();

    let results = Results::load(&[&file])?;
    let [run] = &results.runs[..] else { panic!("{} runs", results.runs.len()) };
    assert_eq!(run.machine.commit, "abc");
    assert_eq!(run.machine.absent.keys().collect::<Vec<_>>(), ["torch"]);
    assert!(run.machine.absent["torch"].contains("cannot start no-such-python"), "{:?}", run.machine.absent);
    assert_eq!(run.cells.iter().map(|cell| cell.key.batch).collect::<Vec<_>>(), [1, 2]);
    for cell in &run.cells {
        let names: Vec<&str> = cell.contestants.iter().map(|contestant| contestant.name.as_str()).collect();
        assert_eq!(names, ["candle", "candle tuned", "candle accurate", "eager", "sequential", "opara"]);
        for contestant in &cell.contestants {
            let Outcome::Measured(measured) = &contestant.outcome else { panic!("{contestant:?}") };
            for series in [&measured.warm, &measured.flushed] {
                let counts = [&series.gpu_us, &series.wall_us, &series.host_us].map(Vec::len);
                assert_eq!(counts, [4; 3], "{}", contestant.name);
                assert!(series.gpu_us.iter().all(|&us| us > 0.), "{series:?}");
            }
            // Replays give the bits of eager execution; candle's operators round differently.
            assert!(measured.error < 1e-3 && (contestant.name.starts_with("candle") || measured.error == 0.));
        }
    }

    let drawn = folder.path().join("drawn");
    peers().arg("draw").arg(&file).arg("-o").arg(&drawn).assert().success();
    let table = std::fs::read_to_string(drawn.join("results.md"))?;
    assert!(table.contains("deepfm") && table.contains("cannot start no-such-python"), "{table}");

    // Compared with itself, nothing has changed.
    peers().arg("diff").arg(&file).arg(&file).assert().success().stdout(contains("same"));
    Ok(())
}

#[test]
fn unusable_arguments_are_reported_before_measuring() -> Result<()> {
    let folder = TempDir::new()?;
    let nowhere = folder.path().join("nowhere").join("results.json");
    // The error comes before the first cell, whose log would say that a contestant is ready.
    let unwritable = contains("cannot write").and(contains("ready in").not());
    measure(&nowhere).args(["--only", "eager"]).assert().code(2).stderr(unwritable);
    peers().args(["measure", "--cpu", "--calls", "0", "-o", "x"]).assert().code(2).stderr(contains("0 is not in 1.."));

    let file = folder.path().join("results.json");
    std::fs::write(&file, r#"{"format": 1, "runs": []}"#)?;
    let draw = |baseline| peers().args(["draw", "--baseline", baseline, "-o"]).arg(folder.path()).arg(&file).assert();
    draw("foo").code(2).stderr(contains("the results have no contestant \"foo\""));
    Ok(())
}

#[test]
fn invalid_files_and_arguments_are_errors() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("results.json");
    let unknown = "there is no contestant \"fastest\", but candle, candle tuned, candle accurate, eager, sequential";
    measure(&file).args(["--only", "fastest"]).assert().code(2).stderr(contains(unknown));
    assert!(!file.exists());

    std::fs::write(&file, "{}")?;
    let none = contains("holds no results of this program").and(contains("results.json"));
    peers().arg("draw").arg(&file).arg("-o").arg(folder.path()).assert().code(2).stderr(none);
    std::fs::write(&file, r#"{"format": 99, "runs": []}"#)?;
    peers().arg("diff").arg(&file).arg(&file).assert().code(2).stderr(contains("is of format 99"));
    Ok(())
}
