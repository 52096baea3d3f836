//! `opara timeline`: draws a simulated pass.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use opara_plan::timeline::Timeline;
use opara_plan::trace::Trace;

use crate::drawing::Drawing;
use crate::simulated::Pass;

/// Draws a simulated pass, with one lane per stream.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pass: Pass,

    /// The format to write.
    #[arg(long, value_enum, default_value = "svg")]
    format: Format,

    /// Write to this file instead of stdout.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// The format of a timeline.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Format {
    /// A drawing.
    Svg,
    /// JSON for chrome://tracing and Perfetto.
    Chrome,
}

impl Args {
    /// Draws the pass.
    ///
    /// # Errors
    /// An error of [`Pass::run`], or a file that cannot be written.
    pub fn run(&self) -> Result<Drawing> {
        let simulated = self.pass.run()?;
        let (trace, timeline) = (&simulated.prepared.ops.trace, &simulated.timeline);
        let title = format!("{} on {}", simulated.scheduler, simulated.device.name);
        Drawing::new(self.format.draw(timeline, trace, &title), self.output.as_deref())
    }
}

impl Format {
    /// Draws the ops of this trace in this format.
    pub fn draw(self, timeline: &Timeline, trace: &Trace, title: &str) -> String {
        match self {
            Format::Svg => timeline.to_svg(trace, title),
            Format::Chrome => timeline.to_chrome_json(trace),
        }
    }
}
