//! `opara agreement`: compares simulated times with measured ones.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use opara_plan::simulate::{Agreement, SimulatedAndMeasured};
use opara_plan::Scheduler;
use serde::Serialize;

use crate::input;
use crate::table::Table;

/// Compares simulated times with times measured on the device.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Recorded traces with measurements: trace files, or JSON if the name ends in `.json`.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
}

/// One table per trace, and the agreement over all of them.
#[derive(Debug, Clone, Serialize)]
pub struct Agreements {
    traces: Vec<OfTrace>,
    pairs: usize,
    /// Median of all errors, relative to the measured times.
    median_error: f64,
}

/// All measured schedulers of one trace.
#[derive(Debug, Clone, Serialize)]
struct OfTrace {
    trace: PathBuf,
    device: String,
    schedulers: Vec<Row>,
    #[serde(flatten)]
    agreement: Agreement,
}

/// One scheduler.
#[derive(Debug, Clone, Serialize)]
struct Row {
    scheduler: String,
    simulated_us: f64,
    measured_us: f64,
    /// Relative to the measured time; negative if the simulated time is too short.
    error: f64,
}

impl Row {
    fn pair(&self) -> (f64, f64) {
        (self.simulated_us, self.measured_us)
    }
}

impl Args {
    /// Compares the times.
    ///
    /// # Errors
    /// Files that cannot be read, traces without measurements, and the schedulers' own.
    pub fn run(&self) -> Result<Agreements> {
        let traces = self.traces.iter().map(|path| OfTrace::new(path)).collect::<Result<Vec<_>>>()?;
        let pairs: Vec<(f64, f64)> = traces.iter().flat_map(|of| &of.schedulers).map(Row::pair).collect();
        let all = Agreement::of(&pairs).context("no trace")?;
        Ok(Agreements { traces, pairs: all.pairs, median_error: all.median_error })
    }
}

impl OfTrace {
    fn new(path: &Path) -> Result<Self> {
        let trace = input::load(path)?;
        let compared = SimulatedAndMeasured::all(&trace, &input::prepare(&trace))?;
        let row = |one: SimulatedAndMeasured| Row {
            scheduler: one.scheduler.name(),
            simulated_us: one.simulated_us,
            measured_us: one.measured_us,
            error: one.simulated_us / one.measured_us - 1.,
        };
        let schedulers: Vec<Row> = compared.into_iter().filter(|one| one.measured_us > 0.).map(row).collect();
        let pairs: Vec<(f64, f64)> = schedulers.iter().map(Row::pair).collect();
        let Some(agreement) = Agreement::of(&pairs) else {
            bail!("trace `{}` holds no measurement of a scheduler: `opara record` takes them on a GPU", path.display());
        };
        Ok(Self { trace: path.into(), device: trace.device.name, schedulers, agreement })
    }
}

impl fmt::Display for Agreements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for OfTrace { trace, device, schedulers, agreement } in &self.traces {
            writeln!(f, "{}: measured on {device}", trace.display())?;
            let mut table = Table::new(&["scheduler", "simulated, us", "measured, us", "error"]);
            for row in schedulers {
                let cells = [
                    format!("{:.1}", row.simulated_us),
                    format!("{:.1}", row.measured_us),
                    format!("{:+.1} %", 100. * row.error),
                ];
                table.row(&row.scheduler, cells);
            }
            table.fmt(f)?;
            let rank = agreement.rank_correlation.map_or("none, all times are the same".into(), |r| format!("{r:.2}"));
            writeln!(f, "median error {:.1} %, rank correlation {rank}\n", 100. * agreement.median_error)?;
        }
        writeln!(f, "all {} pairs: median error {:.1} %", self.pairs, 100. * self.median_error)
    }
}
