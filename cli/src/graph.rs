//! `opara graph`: draws the dependency graph.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::drawing::Drawing;
use crate::input::{self, Input};
use crate::layers;

/// Draws the ops that every call runs, and their dependencies.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    /// The format to write.
    #[arg(long, value_enum, default_value = "dot")]
    format: Format,

    /// Write to this file instead of stdout.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// The GraphViz language.
    Dot,
    /// A drawing; deeper ops are lower.
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
