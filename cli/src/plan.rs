//! `opara plan`: schedules a trace.

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use opara_plan::Scheduler;
use serde::Serialize;

use crate::input::{self, Input};
use crate::plan_file::PlanFile;
use crate::scheduler::ChosenScheduler;

/// Schedules a trace, and writes the plan as JSON.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    #[command(flatten)]
    chosen: ChosenScheduler,

    /// Write the plan to this file.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// The result of a scheduler.
#[derive(Debug, Clone, Serialize)]
pub struct Planned {
    scheduler: String,
    ops: usize,
    streams: usize,
    waits: usize,
    barriers: usize,
    schedule_ms: f64,
    file: Option<PathBuf>,
}

impl Args {
    /// Schedules the trace.
    ///
    /// # Errors
    /// Files that cannot be read or written, or an error of the scheduler.
    pub fn run(&self) -> Result<Planned> {
        let trace = self.input.load()?;
        let prepared = input::prepare(&trace);
        let scheduler = self.chosen.scheduler;
        let start = Instant::now();
        let schedule = scheduler.schedule(&prepared.problem())?;
        let planned = Planned {
            scheduler: scheduler.name(),
            ops: schedule.order.len(),
            streams: schedule.streams(),
            waits: schedule.wait_count(),
            barriers: schedule.barriers.len(),
            schedule_ms: start.elapsed().as_secs_f64() * 1e3,
            file: self.output.clone(),
        };
        if let Some(path) = &self.output {
            let plan = PlanFile::new(&trace, &prepared, scheduler.name(), schedule)?;
            input::write(path, &serde_json::to_vec(&plan)?)?;
        }
        Ok(planned)
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        row("scheduler", self.scheduler.clone())?;
        row("ops", self.ops.to_string())?;
        row("streams", self.streams.to_string())?;
        row("waits", self.waits.to_string())?;
        row("barriers", self.barriers.to_string())?;
        row("scheduled in, ms", format!("{:.2}", self.schedule_ms))?;
        self.file.iter().try_for_each(|path| row("plan", path.display().to_string()))
    }
}
