//! `opara record`: traces of the models that come with the library.

use std::fmt;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use candle::{DType, Device};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use opara_candle::{OparaExecutor, SpanLabels};
use opara_examples::Native;
use serde::Serialize;
use tracing_subscriber::prelude::*;

/// Records a forward pass of one of the library's models, of random weights, on the first GPU.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The model.
    #[arg(value_enum)]
    model: Native,

    /// Type of weights and activations.
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(["f32", "f16"])
        .try_map(|name| name.parse::<DType>()))]
    dtype: DType,

    /// Items in a batch.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,

    /// Record on the CPU.
    #[arg(long)]
    cpu: bool,

    /// Write the trace into this file; without it, into one that is called after model and type.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// What was recorded.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    model: String,
    device: String,
    ops: usize,
    buffers: usize,
    file: PathBuf,
}

impl Args {
    /// Records the model.
    ///
    /// # Errors
    /// No GPU, a model that cannot be captured, a file that cannot be written.
    pub fn run(&self) -> Result<Recorded> {
        // Layers enter spans; these become the ops' labels.
        tracing_subscriber::registry().with(SpanLabels).init();
        let device = match self.cpu {
            true => Device::Cpu,
            false => opara_candle::cuda_device(0).context("there is no GPU to record on; --cpu records on the CPU")?,
        };
        let model = self.model.load(opara_weights::seeded(0, self.dtype, &device))?;
        let example = [self.model.example(self.batch, self.dtype, &device)?];
        let executor =
            OparaExecutor::builder().verify(false).race(false).build_fn(move |inputs| model.call(inputs), &example)?;
        let Some(trace) = executor.trace() else {
            bail!("the model cannot be recorded: {}", executor.report().reason.unwrap_or_default());
        };
        let name = self.model.name();
        let usual = || format!("{name}-{}.trace", self.dtype.as_str()).into();
        let file = self.output.clone().unwrap_or_else(usual);
        trace.save(&file)?;
        let (ops, buffers) = (trace.ops.len(), trace.buffers.len());
        Ok(Recorded { model: name, device: trace.device.name, ops, buffers, file })
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, device, ops, buffers, file } = self;
        writeln!(f, "{model} on {device}: {ops} ops, {buffers} buffers in {}", file.display())
    }
}
