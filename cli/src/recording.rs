//! A model of the library, ready to be recorded.

use anyhow::{bail, Context, Result};
use candle::{DType, Device, Tensor};
use clap::builder::RangedU64ValueParser;
use opara_candle::{Builder, Mode, OparaExecutor, SpanLabels};
use opara_examples::{types, warnings, Native};
use tracing_subscriber::prelude::*;

/// The model to record, and the device; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Recording {
    /// The model.
    #[arg(value_enum)]
    model: Native,

    /// Type of weights and activations.
    #[arg(long, default_value = "f32", value_parser = types(["f32", "f16"]))]
    dtype: DType,

    /// Items in a batch.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,

    /// Use the CPU.
    #[arg(long)]
    cpu: bool,
}

impl Recording {
    /// Model and type, as in file names.
    pub fn name(&self) -> String {
        format!("{}-{}", self.model.name(), self.dtype.as_str())
    }

    /// An executor of the model with random weights, and an example of its inputs.
    ///
    /// # Errors
    /// No GPU, or a model that cannot be captured.
    pub fn executor(&self, builder: Builder) -> Result<(OparaExecutor, [Tensor; 1])> {
        // Spans of the layers become the ops' labels. The library's warnings are printed.
        tracing_subscriber::registry().with(warnings()).with(SpanLabels).init();
        let device = match self.cpu {
            true => Device::Cpu,
            false => opara_candle::cuda_device(0).context("there is no GPU; --cpu uses the CPU")?,
        };
        let model = self.model.load_seeded(0, self.dtype, &device)?;
        let example = [self.model.example(self.batch, self.dtype, &device)?];
        let executor = builder.build_fn(move |inputs| model.call(inputs), &example)?;
        let report = executor.report();
        if report.mode() == Mode::Eager {
            bail!("the model cannot be recorded: {}", report.reason().unwrap_or_default());
        }
        Ok((executor, example))
    }
}
