//! `opara graph`: the dependency graph, as DOT or SVG.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::drawing::Drawing;
use crate::input::{self, Input};
use crate::layers;

/// Draws the ops that every call runs and what they wait for.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    /// What to write.
    #[arg(long, value_enum, default_value = "dot")]
    format: Format,

    /// Write into this file instead of stdout.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// GraphViz's language.
    Dot,
    /// SVG: the deeper an op lies, the lower it is drawn.
    Svg,
}

impl Args {
    /// Draws the graph.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn run(&self) -> Result<Drawing> {
        let prepared = input::prepare(&self.input.load()?);
        let content = match self.format {
            Format::Dot => prepared.graph.to_dot(|op| format!("{op}: {}", prepared.ops.trace.ops[op].name)),
            Format::Svg => {
                let name = self.input.trace.file_stem().unwrap_or_default().to_string_lossy();
                layers::svg(&prepared, &name)
            }
        };
        Drawing::new(content, self.output.as_deref())
    }
}
