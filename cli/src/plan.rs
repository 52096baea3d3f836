//! `opara plan`: schedules a trace.

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use opara_plan::Scheduler;
use serde::Serialize;

use crate::input::{self, Input};
use crate::plan_file::PlanFile;
use crate::policy::ChosenPolicy;

/// Schedules a trace, and writes the plan as JSON.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    #[command(flatten)]
    chosen: ChosenPolicy,

    /// Write the plan to this file.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// The result of a policy.
#[derive(Debug, Clone, Serialize)]
pub struct Planned {
    policy: String,
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
    /// Files that cannot be read or written, or an error of the policy.
    pub fn run(&self) -> Result<Planned> {
        let trace = self.input.load()?;
        let prepared = input::prepare(&trace);
        let policy = self.chosen.policy;
        let start = Instant::now();
        let schedule = policy.schedule(&prepared.problem())?;
        let planned = Planned {
            policy: policy.name(),
            ops: schedule.order.len(),
            streams: schedule.streams(),
            waits: schedule.wait_count(),
            barriers: schedule.barriers.len(),
            schedule_ms: start.elapsed().as_secs_f64() * 1e3,
            file: self.output.clone(),
        };
        if let Some(path) = &self.output {
            let plan = PlanFile::new(&trace, &prepared, policy.name(), schedule)?;
            input::write(path, &serde_json::to_vec(&plan)?)?;
        }
        Ok(planned)
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        row("policy", self.policy.clone())?;
        row("ops", self.ops.to_string())?;
        row("streams", self.streams.to_string())?;
        row("waits", self.waits.to_string())?;
        row("barriers", self.barriers.to_string())?;
        row("scheduled in, ms", format!("{:.2}", self.schedule_ms))?;
        self.file.iter().try_for_each(|path| row("plan", path.display().to_string()))
    }
}
