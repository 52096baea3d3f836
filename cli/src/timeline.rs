//! `opara timeline`: a simulated pass as SVG or JSON.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use opara_plan::timeline::Timeline;
use opara_plan::trace::Trace;

use crate::drawing::Drawing;
use crate::simulated::Pass;

/// Draws a simulated pass: one row per stream.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pass: Pass,

    /// What to write.
    #[arg(long, value_enum, default_value = "svg")]
    format: Format,

    /// Write into this file instead of stdout.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// What a timeline is written as.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Format {
    /// SVG.
    Svg,
    /// JSON for chrome://tracing and Perfetto.
    Chrome,
}

impl Args {
    /// Draws the pass.
    ///
    /// # Errors
    /// Those of [`Pass::run`], and a file that cannot be written.
    pub fn run(&self) -> Result<Drawing> {
        let simulated = self.pass.run()?;
        let (trace, timeline) = (&simulated.prepared.ops.trace, &simulated.timeline);
        let title = format!("{} on {}", simulated.policy, simulated.device.name);
        Drawing::new(self.format.draw(timeline, trace, &title), self.output.as_deref())
    }
}

impl Format {
    /// A timeline of the ops of this trace in this format.
    pub fn draw(self, timeline: &Timeline, trace: &Trace, title: &str) -> String {
        match self {
            Format::Svg => timeline.to_svg(trace, title),
            Format::Chrome => timeline.to_chrome_json(trace),
        }
    }
}
