//! A model that runs eagerly and in executors, and the reports of the examples.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle::{Device, Module, Tensor};
use opara_candle::{ops, Builder, BuiltIn, OparaExecutor};

use crate::{Latencies, Options, Run};

type Forward = dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync;

/// A model as a function of its inputs. Clones share the model.
#[derive(Clone)]
pub struct Model(Arc<Forward>);

impl Model {
    /// Wraps a function of several inputs.
    pub fn new(f: impl Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// Wraps a module with one input and one output.
    pub fn of(module: impl Module + Send + Sync + 'static) -> Self {
        Self::new(move |inputs| Ok(vec![module.forward(&inputs[0])?]))
    }

    /// The same model, whose calls use candle's operators alone, in the whole process while they run.
    pub fn by_candle(self) -> Self {
        Self::new(move |inputs| {
            ops::use_candle_only(true);
            let outputs = self.call(inputs);
            ops::use_candle_only(false);
            outputs
        })
    }

    /// Runs the model eagerly.
    ///
    /// # Errors
    /// An error of the model.
    pub fn call(&self, inputs: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        (self.0)(inputs)
    }

    /// Builds an executor of the model.
    ///
    /// # Errors
    /// An error of the model or of the device.
    pub fn executor(&self, builder: Builder, example: &[Tensor]) -> Result<OparaExecutor> {
        let model = self.clone();
        Ok(builder.build_fn(move |inputs| model.call(inputs), example)?)
    }
}

/// Options for an example's reports; flatten them into its own.
#[derive(Debug, Clone, clap::Args)]
pub struct Show {
    /// Also measure the sequential graph, and a zero-copy replay, whose outputs are not copied.
    #[arg(long)]
    compare: bool,

    /// Draw the schedule to this SVG file.
    #[arg(long)]
    svg: Option<PathBuf>,

    /// Save the recorded trace to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
}

impl Show {
    /// Writes the requested files, measures `model` on `example`, eagerly and with its executor `fast`, and prints the
    /// report to `out`. On a CPU, where models use this library's operators, it also measures candle's own, which comes first.
    ///
    /// # Errors
    /// A file that cannot be written, or an error of the model.
    pub fn run(
        &self,
        out: impl Write,
        options: &Options,
        model: &Model,
        fast: &OparaExecutor,
        example: &[Tensor],
    ) -> Result<()> {
        if let Some(path) = &self.svg {
            std::fs::write(path, fast.schedule_svg(example)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.trace {
            fast.trace(example)?.save(path)?;
        }
        let sequential = self
            .compare
            .then(|| model.executor(OparaExecutor::builder().scheduler(BuiltIn::Sequential), example))
            .transpose()?;
        let sequential = sequential.as_ref().map(|graph| || Ok(graph.call(example)?));
        let (eager, replay) = (|| model.call(example), || Ok(fast.call(example)?));
        let zero_copy = || Ok(fast.call_zero_copy(example, |_| Vec::new())?);
        let device = example.first().map_or(&Device::Cpu, Tensor::device);
        let by_candle = (device.is_cpu() && !options.candle).then(|| model.clone().by_candle());
        let by_candle = by_candle.as_ref().map(|model| || model.call(example));
        let mut runs: Vec<Run> = Vec::new();
        runs.extend(by_candle.as_ref().map(|run| ("candle's operators", run as _)));
        runs.push(("eager", &eager));
        if let Some(sequential) = &sequential {
            runs.extend([("sequential", sequential as _), ("replay, zero-copy", &zero_copy as _)]);
        }
        runs.push(("replay", &replay));
        let latencies = Latencies::measure(device, options.iters, &runs)?;
        options.print(out, fast.report_for(example)?, &latencies)
    }
}
