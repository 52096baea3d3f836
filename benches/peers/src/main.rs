//! `peers`: measures the library side by side with PyTorch and ONNX Runtime, draws and merges results, and compares
//! results from before and after a change.

mod bench;
mod cell;
mod compile;
mod gpu;
mod machine;
mod measure;
mod own;
mod parts;
mod peer;
mod way;
mod worker;

use std::io::{stdout, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{ensure, Result};
use clap::{Parser, Subcommand};
use opara_examples::reader_left;
use opara_peers::results::Results;
use opara_peers::{diff, draw, merge};

use crate::parts::Only;

/// Measures the library side by side with PyTorch and ONNX Runtime, and draws, merges and compares results.
///
/// Exit codes: 0 on success, 1 if a comparison found something slower, 2 if a command or a file is invalid.
#[derive(Parser)]
#[command(name = "peers", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Measure(measure::Args),
    Compile(compile::Args),
    Draw(Draw),
    Diff(Diff),
    Merge(Merge),
}

/// Draws tables and plots of results; needs no GPU.
#[derive(clap::Args)]
struct Draw {
    /// Files of results. Where several contain the same measurement, the last counts.
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// Folder to write into.
    #[arg(short, long)]
    output: PathBuf,

    /// The contestant that speed-ups are relative to; default: "torch eager".
    #[arg(long)]
    baseline: Option<String>,
}

/// Merges several files of results into one file for each model and type.
///
/// Of repeated measurements the last is kept.
#[derive(clap::Args)]
struct Merge {
    /// Files of results, oldest first. They may be the output files themselves.
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// Folder to write into.
    #[arg(short, long)]
    output: PathBuf,

    #[command(flatten)]
    only: Only,
}

/// Compares results from before a change with results from after it, and distinguishes changes from noise.
///
/// A change counts if the ratio of the medians differs from 1 by more than the threshold, and by more than resampled
/// turns do.
#[derive(clap::Args)]
struct Diff {
    /// Results from before.
    before: PathBuf,

    /// Results from after.
    after: PathBuf,

    /// The smallest change that counts.
    #[arg(long, default_value_t = diff::Options::default().threshold, value_parser = part)]
    threshold: f64,

    /// Divide by the change of the other contestants, cell by cell: for results from different machines.
    #[arg(long)]
    control: bool,

    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Draw {
    fn run(&self) -> Result<()> {
        let results = Results::load(&self.files)?;
        if let Some(baseline) = &self.baseline {
            let names = results.contestants();
            let known = names.iter().copied().collect::<Vec<_>>().join(", ");
            ensure!(names.contains(&**baseline), "the results have no contestant {baseline:?}, but {known}");
        }
        let baseline = self.baseline.as_deref().unwrap_or(draw::BASELINE);
        for file in draw::draw(&results, &self.output, baseline)? {
            writeln!(stdout(), "{}", file.display())?;
        }
        Ok(())
    }
}

impl Merge {
    fn run(&self) -> Result<()> {
        for file in merge::merge(Results::load(&self.files)?, |name| self.only.wants(name), &self.output)? {
            writeln!(stdout(), "{}", file.display())?;
        }
        Ok(())
    }
}

impl Diff {
    fn run(&self) -> Result<ExitCode> {
        let [before, after] = [&self.before, &self.after].map(|file| Results::load(&[file]));
        let options = diff::Options { threshold: self.threshold, control: self.control };
        let found = diff::diff(&before?, &after?, options);
        let text = if self.json { serde_json::to_string_pretty(&found)? + "\n" } else { found.to_string() };
        stdout().write_all(text.as_bytes())?;
        Ok(if found.regressed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Measure(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Compile(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Draw(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => args.run(),
        Command::Merge(args) => args.run().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if reader_left(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// A non-negative fraction, possibly above 1.
fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (part.is_finite() && part >= 0.).then_some(part).ok_or_else(|| "it must be a number, 0 or more".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_threshold_is_a_number() {
        for (threshold, sound) in [("0.05", true), ("0", true), ("nan", false), ("-1", false), ("inf", false)] {
            let threshold = format!("--threshold={threshold}");
            assert_eq!(Args::try_parse_from(["peers", "diff", "a", "b", &threshold]).is_ok(), sound, "{threshold}");
        }
    }
}
