//! `opara record`: records traces of the library's models.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use opara_candle::OparaExecutor;
use opara_examples::check_writable;
use serde::Serialize;

use crate::input;
use crate::recording::Recording;
use crate::scheduler::ChosenScheduler;
use crate::table::Table;
use crate::timeline::Format;

/// Records a forward pass of one of the library's models, with random weights, on the first GPU.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    recording: Recording,

    #[command(flatten)]
    chosen: ChosenScheduler,

    /// Also measure each op alone and each scheduler's replay, and store that in the trace (GPU and CUPTI only).
    #[arg(long)]
    measure: bool,

    /// Write a timeline of one replay, measured on the GPU, to this file: an SVG, or JSON for chrome://tracing and
    /// Perfetto if the name ends in `.json`.
    #[arg(long)]
    timeline: Option<PathBuf>,

    /// Write the trace to this file; default: a name made of model and type.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// The result of the recording.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    model: String,
    device: String,
    ops: usize,
    buffers: usize,
    file: PathBuf,
    measured: Vec<Row>,
    timeline: Option<PathBuf>,
}

/// One scheduler, as measured.
#[derive(Debug, Clone, Serialize)]
struct Row {
    scheduler: String,
    us: f64,
    utilization: Option<f64>,
}

impl Args {
    /// Records the model.
    ///
    /// # Errors
    /// No GPU, a model that cannot be captured, a file that cannot be written.
    pub fn run(&self) -> Result<Recorded> {
        let usual = || format!("{}.trace", self.recording.name()).into();
        let file = self.output.clone().unwrap_or_else(usual);
        [&file].into_iter().chain(&self.timeline).try_for_each(|path| check_writable(path))?;
        let builder =
            OparaExecutor::builder().verify(false).benchmark_challengers(false).scheduler(self.chosen.scheduler);
        let (executor, example) = self.recording.executor(builder)?;
        let trace = match self.measure {
            true => executor.measure(&example)?,
            false => executor.trace(&example)?,
        };
        trace.save(&file)?;
        if let Some(path) = &self.timeline {
            let timeline = executor.timeline(&example)?;
            let (ops, _) = executor.schedule(&example)?;
            let title =
                format!("{}, {}, measured on {}", self.recording.name(), self.chosen.scheduler, trace.device.name);
            let format = if input::is_json(path) { Format::Chrome } else { Format::Svg };
            input::write(path, format.draw(&timeline, &ops, &title).as_bytes())?;
        }
        let measured = trace.measured.iter().map(|measured| Row {
            scheduler: measured.schedule.clone(),
            us: measured.nanos as f64 / 1e3,
            utilization: measured.busy.map(|busy| f64::from(busy) / 1e3),
        });
        Ok(Recorded {
            model: self.recording.name(),
            ops: trace.ops.len(),
            buffers: trace.buffers.len(),
            measured: measured.collect(),
            device: trace.device.name,
            file,
            timeline: self.timeline.clone(),
        })
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, device, ops, buffers, file, .. } = self;
        writeln!(f, "{model} on {device}: {ops} ops, {buffers} buffers in {}", file.display())?;
        if !self.measured.is_empty() {
            let mut table = Table::new(&["scheduler", "us", "device in use"]);
            for row in &self.measured {
                let share = row.utilization.map_or("-".into(), |share| format!("{:.0} %", 100. * share));
                table.row(&row.scheduler, [format!("{:.1}", row.us), share]);
            }
            table.fmt(f)?;
        }
        self.timeline.iter().try_for_each(|path| writeln!(f, "timeline in {}", path.display()))
    }
}
