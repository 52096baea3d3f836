//! `opara tune`: searches for the fastest schedule of a model on this machine.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use opara_candle::plan::tune::{Findings, Progress};
use opara_candle::{BuiltIn, OparaExecutor, Search};
use opara_examples::check_writable;
use opara_plan::Prepared;
use serde::Serialize;

use crate::input;
use crate::plan_file::PlanFile;
use crate::recording::Recording;
use crate::table::Table;

/// Searches for the fastest schedule of one of the library's models by running many.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    recording: Recording,

    /// Time budget in seconds.
    #[arg(long, default_value_t = 5.)]
    budget: f64,

    /// Seed of the mutations.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Folder of tuned plans; default: none is used.
    #[arg(long)]
    cache: Option<PathBuf>,

    /// Write the plan to this file.
    #[arg(short, long)]
    output: Option<PathBuf>,

    /// Write the trace that the plan belongs to, to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// The result of the search.
#[derive(Debug, Clone, Serialize)]
pub struct Tuned {
    model: String,
    device: String,
    streams: usize,
    waits: usize,
    findings: Findings,
    file: Option<PathBuf>,
}

impl Args {
    /// Runs the search.
    ///
    /// # Errors
    /// A model that cannot be captured, an invalid budget, files that cannot be written.
    pub fn run(&self) -> Result<Tuned> {
        let budget = Duration::try_from_secs_f64(self.budget).context("--budget")?;
        self.output.iter().chain(&self.trace).try_for_each(|path| check_writable(path))?;
        let bar = ProgressBar::new(1000).with_style(ProgressStyle::with_template("{bar:40} {msg}")?);
        let shown = bar.clone();
        let progress = move |at: &Progress| {
            shown.set_position((at.share * 1e3) as u64);
            shown.set_message(format!("{} tried, best {:.1} us", at.tried, at.best_us));
        };
        let tuning = Search::default().budget(budget).seed(self.seed).cache(self.cache.clone()).on_progress(progress);
        let (executor, example) = self.recording.executor(OparaExecutor::builder().scheduler(tuning))?;
        bar.finish_and_clear();
        let report = executor.report();
        let findings = report.search().cloned().with_context(|| report.reason().unwrap_or_default().to_owned())?;
        let (trace, (ops, schedule)) = (executor.trace(&example)?, executor.schedule(&example)?);
        if let Some(path) = &self.trace {
            trace.save(path)?;
        }
        let tuned = Tuned {
            model: self.recording.name(),
            device: ops.device.name,
            streams: schedule.streams(),
            waits: schedule.wait_count(),
            findings,
            file: self.output.clone(),
        };
        if let Some(path) = &self.output {
            let prepared: Prepared = input::prepare(&trace);
            let plan = PlanFile::new(&trace, &prepared, BuiltIn::Tuned.to_string(), schedule)?;
            input::write(path, &serde_json::to_vec(&plan)?)?;
        }
        Ok(tuned)
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}: {}", self.model, self.device, self.findings)?;
        let sequential = BuiltIn::Sequential.to_string();
        let sequential = self.findings.ranking.iter().find(|(name, _)| *name == sequential).map(|(_, us)| *us);
        let mut table = Table::new(&["schedule", "us", "speed-up"]);
        let winner = (format!("tuned: {}", self.findings.origin), self.findings.us);
        for (name, us) in std::iter::once(&winner).chain(&self.findings.ranking) {
            let speedup = sequential.map_or("-".into(), |sequential| format!("{:.2}x", sequential / us));
            table.row(name, [format!("{us:.1}"), speedup]);
        }
        table.fmt(f)?;
        self.file.iter().try_for_each(|path| writeln!(f, "plan in {}", path.display()))
    }
}
