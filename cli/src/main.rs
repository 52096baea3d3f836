//! `opara`: inspects recorded traces, and schedules, checks, draws and converts them.

mod agreement;
mod answer;
mod check;
mod compare;
mod convert;
mod device;
mod drawing;
mod graph;
mod input;
mod inspect;
mod layers;
mod plan;
mod plan_file;
#[cfg(feature = "record")]
mod record;
#[cfg(feature = "record")]
mod recording;
mod scheduler;
mod simulate;
mod simulated;
mod table;
mod timeline;
#[cfg(feature = "record")]
mod tune;

use std::io::{stderr, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Inspects recorded traces, and schedules, checks, draws and converts them.
///
/// A trace is a file that an executor recorded, or JSON from `opara convert`. Exit codes: 0 on success, 1 if a check
/// failed, 2 if a command or a file is invalid.
#[derive(Parser)]
#[command(name = "opara", version)]
struct Args {
    /// Print the answer as JSON.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inspect(inspect::Args),
    Plan(plan::Args),
    Check(check::Args),
    Compare(compare::Args),
    Simulate(simulate::Args),
    Agreement(agreement::Args),
    Timeline(timeline::Args),
    Graph(graph::Args),
    Convert(convert::Args),
    #[cfg(feature = "record")]
    Record(record::Args),
    #[cfg(feature = "record")]
    Tune(tune::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.run() {
        Ok(code) => code,
        Err(error) if answer::nobody_reads(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, there is no place to report that.
            let _ = writeln!(stderr(), "error: {}", answer::told(&error));
            ExitCode::from(2)
        }
    }
}

impl Args {
    fn run(&self) -> Result<ExitCode> {
        match &self.command {
            Command::Inspect(args) => answer::print(&args.run()?, self.json)?,
            Command::Plan(args) => answer::print(&args.run()?, self.json)?,
            Command::Check(args) => {
                let verdict = args.run()?;
                answer::print(&verdict, self.json)?;
                if !verdict.ok {
                    return Ok(ExitCode::FAILURE);
                }
            }
            Command::Compare(args) => answer::print(&args.run()?, self.json)?,
            Command::Simulate(args) => answer::print(&args.run()?, self.json)?,
            Command::Agreement(args) => answer::print(&args.run()?, self.json)?,
            Command::Timeline(args) => answer::print(&args.run()?, self.json)?,
            Command::Graph(args) => answer::print(&args.run()?, self.json)?,
            Command::Convert(args) => answer::print(&args.run()?, self.json)?,
            #[cfg(feature = "record")]
            Command::Record(args) => answer::print(&args.run()?, self.json)?,
            #[cfg(feature = "record")]
            Command::Tune(args) => answer::print(&args.run()?, self.json)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Args::command().debug_assert();
    }
}
