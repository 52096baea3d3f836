//! Options of every example.

use std::io::{stderr, stdout, Write};

use anyhow::{Context, Result};
use candle::{DType, Device};
use candle_nn::VarBuilder;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use opara_candle::{Builder, BuiltIn, OparaExecutor, Report, SpanLabels};
use opara_weights::{Checkpoint, Loaded, WeightsError};
use tracing_subscriber::prelude::*;

use crate::warnings::warnings;
use crate::Latencies;

/// Parses one of the given dtype names on a command line.
pub fn types<const N: usize>(names: [&'static str; N]) -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(names).try_map(|name| name.parse::<DType>())
}

/// Options of an example; flatten them into its own.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Run on the CPU even if there is a GPU.
    #[arg(long)]
    cpu: bool,

    /// Dtype of weights and activations.
    #[arg(long, default_value = "f32", value_parser = types(["f32", "f16", "bf16"]))]
    dtype: DType,

    /// Batch size.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub batch: usize,

    /// Scheduling scheduler.
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(BuiltIn::ALL.map(BuiltIn::as_str))
        .try_map(|name| name.parse::<BuiltIn>()))]
    pub scheduler: BuiltIn,

    /// Do not fuse chains of candle's kernels on a GPU, for comparison.
    #[arg(long)]
    no_fuse: bool,

    /// Forward passes to measure for each kind of execution.
    #[arg(long, default_value_t = 50, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub iters: usize,

    /// Print the report as JSON on stdout, and everything else on stderr.
    #[arg(long)]
    pub json: bool,

    /// A checkpoint: a folder, a weights file, or an id on the hub. For a weights file, `config.json` and
    /// `tokenizer.json` in its folder are read if they exist. Without a checkpoint the weights are random.
    #[arg(long)]
    pub model: Option<String>,

    /// Load the model though fields of its configuration, its quantization or some of its tensors are not known, and may change
    /// the answer. Warnings name them.
    #[arg(long)]
    pub allow_unread: bool,

    /// Seed of random weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Use only candle's operators and none of the library's kernels, for comparison.
    #[arg(long)]
    pub(crate) candle: bool,
}

impl Options {
    /// Selects the operators, and installs the subscriber that labels them by the spans of their layers and prints
    /// warnings to stderr.
    ///
    /// Call it before a model is loaded, because loading lays out weights for the selected operators, and
    /// candle-transformers creates its spans.
    pub fn start(&self) {
        opara_candle::ops::use_candle_only(self.candle);
        tracing_subscriber::registry().with(warnings()).with(SpanLabels).init();
    }

    /// An executor builder for these options.
    pub fn builder(&self) -> Builder {
        OparaExecutor::builder().scheduler(self.scheduler).fuse(!self.no_fuse)
    }

    /// The first GPU, or the CPU if requested or if there is no GPU. Prints the device on stderr.
    pub fn device(&self) -> Device {
        if self.cpu {
            eprintln!("running on the CPU");
            return Device::Cpu;
        }
        match opara_candle::cuda_device(0) {
            Ok(device) => {
                eprintln!("running on GPU 0");
                device
            }
            Err(error) => {
                eprintln!("running on the CPU: {error}");
                Device::Cpu
            }
        }
    }

    /// Dtype of weights and activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Finds the checkpoint of `--model`.
    ///
    /// # Errors
    /// A model that does not exist.
    pub fn checkpoint(&self) -> Result<Option<Checkpoint>> {
        let found = self.model.as_deref().map(Checkpoint::find).transpose()?;
        Ok(found.map(|checkpoint| checkpoint.allow_unread(self.allow_unread)))
    }

    /// The checkpoint's `config.json` as `read` does it, or `default` without a checkpoint or for a weights file without one in
    /// its folder.
    ///
    /// # Errors
    /// An invalid file.
    pub fn config<C>(
        &self,
        checkpoint: Option<&Checkpoint>,
        read: impl FnOnce(&Checkpoint) -> Result<C, WeightsError>,
        default: impl FnOnce() -> C,
    ) -> Result<C> {
        match checkpoint {
            Some(checkpoint) if checkpoint.config_path().is_some() => Ok(read(checkpoint)?),
            Some(_) => {
                eprintln!("there is no config.json in the folder of the weights file: the options select the model");
                Ok(default())
            }
            None => Ok(default()),
        }
    }

    /// Loads a model with the checkpoint's weights, or with random ones from the seed, and prints on stderr which. `check` refuses
    /// tensors of the checkpoint that the model does not read: a configuration with fewer layers than were trained shows there.
    ///
    /// # Errors
    /// An invalid file, a model that the files do not fit, or tensors that are refused.
    pub fn load<M>(
        &self,
        checkpoint: Option<&Checkpoint>,
        device: &Device,
        load: impl FnOnce(VarBuilder<'static>) -> candle::Result<M>,
        check: impl FnOnce(&Loaded) -> Result<(), WeightsError>,
    ) -> Result<M> {
        let Some(checkpoint) = checkpoint else {
            eprintln!("weights are random (seed {}): results mean nothing without --model", self.seed);
            return Ok(load(opara_weights::seeded(self.seed, self.dtype, device))?);
        };
        let loaded = checkpoint.load(self.dtype, device)?;
        let model = load(loaded.vb.clone()).with_context(|| match checkpoint.config_path() {
            Some(path) => format!("the weights do not fit {}", path.display()),
            None => {
                "the weights do not fit this model: if it has another size, say so, or put its config.json beside the \
                     weights file"
                    .into()
            }
        })?;
        check(&loaded)?;
        Ok(model)
    }

    /// The writer for an example's results: stdout, unless that is reserved for JSON.
    pub fn out(&self) -> Box<dyn Write> {
        if self.json {
            Box::new(stderr())
        } else {
            Box::new(stdout())
        }
    }

    /// Prints the report and the latencies, as text or as JSON. The medians called `eager` and `replay` replace the
    /// report's own two latencies, which come from only a handful of passes.
    ///
    /// # Errors
    /// An error of writing.
    pub fn print(&self, mut out: impl Write, report: Report, latencies: &Latencies) -> Result<()> {
        let median = |name| latencies.get(name).map(|latency| latency.median_us);
        let report = report.with_times(median("eager"), median("replay"));
        writeln!(out, "\n{report}\n{latencies}")?;
        if self.json {
            let mut json = serde_json::to_value(&report)?;
            json["latencies"] = serde_json::to_value(latencies)?;
            writeln!(stdout(), "{json:#}")?;
        }
        Ok(())
    }
}
