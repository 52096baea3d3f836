//! `opara simulate`: simulates the duration of a pass.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::simulated::Pass;

/// Simulates a pass, on the device that the trace was recorded on or on another one.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pass: Pass,
}

/// The simulator's result.
#[derive(Debug, Clone, Serialize)]
pub struct Simulation {
    device: String,
    scheduler: String,
    ops: usize,
    streams: usize,
    waits: usize,
    total_us: f64,
    /// Used share of the multiprocessors' time.
    utilization: f64,
}

impl Args {
    /// Simulates the pass.
    ///
    /// # Errors
    /// An error of [`Pass::run`].
    pub fn run(&self) -> Result<Simulation> {
        let simulated = self.pass.run()?;
        let (schedule, timeline) = (&simulated.schedule, &simulated.timeline);
        Ok(Simulation {
            ops: schedule.order.len(),
            streams: schedule.streams(),
            waits: schedule.wait_count(),
            total_us: timeline.total_us,
            utilization: timeline.utilization(),
            device: simulated.device.name,
            scheduler: simulated.scheduler,
        })
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        row("device", self.device.clone())?;
        row("scheduler", self.scheduler.clone())?;
        row("ops", self.ops.to_string())?;
        row("streams, waits", format!("{}, {}", self.streams, self.waits))?;
        row("simulated, us", format!("{:.1}", self.total_us))?;
        row("utilization", format!("{:.1} %", 100. * self.utilization))
    }
}
