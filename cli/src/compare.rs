//! `opara compare`: all schedulers side by side.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use opara_plan::simulate::simulate;
use opara_plan::{BuiltIn, Scheduler};
use serde::Serialize;

use crate::device::ChosenDevice;
use crate::input;
use crate::table::Table;

/// Schedules traces with every scheduler, and simulates the schedules.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Recorded traces: trace files, or JSON if the name ends in `.json`.
    #[arg(required = true)]
    traces: Vec<PathBuf>,

    #[command(flatten)]
    device: ChosenDevice,
}

/// One table per trace.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Comparison(Vec<Compared>);

/// All schedulers on one trace.
#[derive(Debug, Clone, Serialize)]
struct Compared {
    trace: PathBuf,
    device: String,
    ops: usize,
    schedulers: Vec<Row>,
}

/// One scheduler.
#[derive(Debug, Clone, Serialize)]
struct Row {
    scheduler: String,
    streams: usize,
    waits: usize,
    schedule_ms: f64,
    simulated_us: f64,
    /// Relative to the sequential scheduler.
    speedup: f64,
    utilization: f64,
}

impl Args {
    /// Compares the schedulers.
    ///
    /// # Errors
    /// Files that cannot be read, and the schedulers' own.
    pub fn run(&self) -> Result<Comparison> {
        Ok(Comparison(self.traces.iter().map(|path| self.compare(path)).collect::<Result<_>>()?))
    }

    fn compare(&self, path: &Path) -> Result<Compared> {
        let trace = input::load(path)?;
        let device = self.device.device(&trace.device)?;
        let prepared = input::prepare(&trace);
        let row = |scheduler: BuiltIn| -> Result<Row> {
            let start = Instant::now();
            let schedule = scheduler.schedule(&prepared.problem()).with_context(|| scheduler.name())?;
            let schedule_ms = start.elapsed().as_secs_f64() * 1e3;
            let timeline = simulate(&prepared.problem(), &schedule, &device);
            Ok(Row {
                scheduler: scheduler.name(),
                streams: schedule.streams(),
                waits: schedule.wait_count(),
                schedule_ms,
                simulated_us: timeline.total_us,
                speedup: 1.,
                utilization: timeline.utilization(),
            })
        };
        let mut schedulers: Vec<Row> = BuiltIn::ALL.into_iter().map(row).collect::<Result<_>>()?;
        let sequential = schedulers.iter().find(|row| row.scheduler == BuiltIn::Sequential.name());
        let sequential_us = sequential.map_or(0., |row| row.simulated_us);
        // A trace without ops takes no time.
        for row in schedulers.iter_mut().filter(|row| row.simulated_us > 0.) {
            row.speedup = sequential_us / row.simulated_us;
        }
        Ok(Compared { trace: path.into(), device: device.name, ops: prepared.ops.per_call.len(), schedulers })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Compared { trace, device, ops, schedulers }) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}: {ops} ops, simulated on {device}", trace.display())?;
            let header =
                ["scheduler", "streams", "waits", "scheduled in, ms", "simulated, us", "speed-up", "utilization"];
            let mut table = Table::new(&header);
            for row in schedulers {
                let cells = [
                    row.streams.to_string(),
                    row.waits.to_string(),
                    format!("{:.2}", row.schedule_ms),
                    format!("{:.1}", row.simulated_us),
                    format!("{:.2}x", row.speedup),
                    format!("{:.1} %", 100. * row.utilization),
                ];
                table.row(&row.scheduler, cells);
            }
            table.fmt(f)?;
        }
        Ok(())
    }
}
