//! This library's and candle's contestants.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use candle::{DType, Device, Tensor};
use opara_candle::plan::trace::Trace;
use opara_candle::{device_memory, ops, timing, BuiltIn, Mode, Numerics, OparaExecutor};
use opara_examples::{Model, Native};
use opara_peers::results::{Kernel, Series};

use crate::way::{Ready, Way};

/// candle's own operators, eager.
pub const CANDLE: &str = "candle";
/// candle's own operators, recorded and replayed: the gain of wrapping an unchanged module.
pub const CANDLE_TUNED: &str = "candle tuned";
/// The same with [`Numerics::Accurate`]: this library's operators take the place of candle's where they are no less accurate.
pub const CANDLE_ACCURATE: &str = "candle accurate";
/// The contestants that need the model loaded for candle's own operators.
pub const OF_CANDLE: [&str; 3] = [CANDLE, CANDLE_TUNED, CANDLE_ACCURATE];
/// This library's operators, eager.
pub const EAGER: &str = "eager";

/// The names of all contestants: the four above, and one replay per scheduler.
pub fn names() -> impl Iterator<Item = String> {
    OF_CANDLE.into_iter().chain([EAGER]).map(String::from).chain(BuiltIn::ALL.map(|scheduler| scheduler.to_string()))
}

/// Bytes that are written to flush the L2 cache: GPUs have a quarter of that.
const FLUSH: usize = 256 << 20;

/// One model with its weights on the device.
pub struct Subject {
    device: Device,
    own: Model,
    /// A second copy of the model if it is wanted: candle's operators need another weight layout.
    candle: Option<Model>,
    /// Overwritten to flush the L2 cache.
    cache: Tensor,
}

impl Subject {
    /// Loads the model with seeded weights; also for candle's own operators if `with_candle`.
    ///
    /// # Errors
    /// An error of the device.
    pub fn load(model: Native, seed: u64, dtype: DType, device: &Device, with_candle: bool) -> Result<Self> {
        let load = |candle_only| {
            ops::use_candle_only(candle_only);
            model.load_seeded(seed, dtype, device)
        };
        let candle = with_candle.then(|| load(true)).transpose()?;
        let cache = Tensor::zeros(if device.is_cuda() { FLUSH } else { 1 }, DType::U8, device)?;
        Ok(Self { device: device.clone(), candle, own: load(false)?, cache })
    }

    /// The eager output on this library's operators.
    ///
    /// # Errors
    /// An error of the model.
    pub fn eager(&self, input: &Tensor) -> Result<Tensor> {
        ops::use_candle_only(false);
        first(self.own.call(std::slice::from_ref(input))?)
    }

    /// Prepares the contestant called `name` for this input.
    ///
    /// # Errors
    /// An error of the model or of the device, or a module that cannot be captured.
    pub fn prepare(&self, name: &str, input: &Tensor) -> Result<Ready> {
        let began = Instant::now();
        let (ready, memory) = device_memory::watch(&self.device, || {
            let mut own = self.own(name, input)?;
            let output = own.output()?;
            anyhow::Ok((own, output))
        })?;
        let ((own, output), setup_s) = (ready, began.elapsed().as_secs_f64());
        let report = own.executor().map(OparaExecutor::report);
        let note = report.map(|report| {
            let streams = format!("{} streams, {} waits", report.counts().streams, report.counts().waits);
            report.search().map_or(streams.clone(), |found| format!("{}, {streams}", found.origin))
        });
        let peak_bytes = memory.map(|memory| memory.peak - memory.before);
        Ok(Ready { way: Box::new(own), output, setup_s, peak_bytes, note })
    }

    fn own(&self, name: &str, input: &Tensor) -> Result<Own> {
        let candle_only = OF_CANDLE.contains(&name);
        let model = if candle_only {
            self.candle.clone().context("the model was not loaded for candle's own operators")?
        } else {
            self.own.clone()
        };
        let call = match name {
            CANDLE | EAGER => Call::Eager { model, candle_only },
            CANDLE_TUNED => Call::Replay(Box::new(replay(model, candle_only, BuiltIn::Tuned, input)?)),
            CANDLE_ACCURATE => Call::Replay(Box::new(rewritten(model, input)?)),
            scheduler => Call::Replay(Box::new(replay(model, candle_only, scheduler.parse()?, input)?)),
        };
        Ok(Own { device: self.device.clone(), call, inputs: [input.clone()], cache: self.cache.clone() })
    }
}

/// An executor with this scheduler. The scheduler itself is measured, even if it is slower than the sequential graph, and the
/// set-up time is that of a first start.
fn replay(model: Model, candle_only: bool, scheduler: BuiltIn, input: &Tensor) -> Result<OparaExecutor> {
    ops::use_candle_only(candle_only);
    let builder = OparaExecutor::builder().scheduler(scheduler).benchmark_challengers(false).cache_folder(None);
    captured(builder.build_fn(move |inputs| model.call(inputs), std::slice::from_ref(input))?)
}

/// An executor of a model on candle's operators that may be rewritten. Its set-up time is that of a first start.
fn rewritten(model: Model, input: &Tensor) -> Result<OparaExecutor> {
    // Rewriting uses this library's operators between the model's calls.
    ops::use_candle_only(false);
    let builder = OparaExecutor::builder().numerics(Numerics::Accurate).cache_folder(None);
    captured(model.by_candle().executor(builder, std::slice::from_ref(input))?)
}

/// The executor, if it replays.
fn captured(executor: OparaExecutor) -> Result<OparaExecutor> {
    let report = executor.report();
    ensure!(report.mode() != Mode::Eager, "not captured: {}", report.reason().unwrap_or_default());
    Ok(executor)
}

enum Call {
    Eager { model: Model, candle_only: bool },
    Replay(Box<OparaExecutor>),
}

/// One contestant, ready to run.
struct Own {
    device: Device,
    call: Call,
    inputs: [Tensor; 1],
    cache: Tensor,
}

impl Own {
    fn executor(&self) -> Option<&OparaExecutor> {
        match &self.call {
            Call::Replay(executor) => Some(executor),
            Call::Eager { .. } => None,
        }
    }

    /// One call; its outputs are dropped, or stay in the executor's buffers.
    fn call(&self) -> candle::Result<()> {
        match &self.call {
            Call::Eager { model, candle_only } => {
                ops::use_candle_only(*candle_only);
                model.call(&self.inputs).map(drop)
            }
            Call::Replay(executor) => Ok(executor.call_zero_copy(&self.inputs, |_| ())?),
        }
    }

    fn output(&mut self) -> Result<Tensor> {
        match &self.call {
            Call::Eager { model, candle_only } => {
                ops::use_candle_only(*candle_only);
                first(model.call(&self.inputs)?)
            }
            Call::Replay(executor) => first(executor.call(&self.inputs)?),
        }
    }
}

fn first(outputs: Vec<Tensor>) -> Result<Tensor> {
    outputs.into_iter().next().context("the model has no output")
}

impl Way for Own {
    fn turn(&mut self, calls: usize, flush: bool) -> Result<Series> {
        self.call()?;
        let mut series = Series::default();
        for _ in 0..calls {
            if flush {
                self.cache.zero_set()?;
            }
            self.device.synchronize()?;
            let sample = timing::sample(&self.device, || self.call())?;
            series.gpu_us.push(sample.gpu_us);
            series.wall_us.push(sample.wall_us);
            series.host_us.push(sample.host_us);
        }
        Ok(series)
    }

    fn spin(&mut self, time: Duration) -> Result<()> {
        /// Maximum calls in flight.
        const AHEAD: usize = 8;
        let began = Instant::now();
        for call in 1.. {
            self.call()?;
            if call % AHEAD == 0 || began.elapsed() >= time {
                self.device.synchronize()?;
            }
            if began.elapsed() >= time {
                break;
            }
        }
        Ok(())
    }

    fn kernels(&mut self) -> Result<Vec<Kernel>> {
        let Some(executor) = self.executor() else { bail!("only replays are timed by kernel") };
        let timeline = executor.timeline(&self.inputs)?;
        let (Trace { ops, .. }, _) = executor.schedule(&self.inputs)?;
        let mut kernels: BTreeMap<&str, Kernel> = BTreeMap::new();
        for span in &timeline.spans {
            let name = &*ops[span.op].name;
            let kernel = kernels.entry(name).or_insert(Kernel { name: name.into(), calls: 0., us: 0. });
            kernel.calls += 1.;
            kernel.us += span.end_us - span.start_us;
        }
        Ok(kernels.into_values().collect())
    }
}
