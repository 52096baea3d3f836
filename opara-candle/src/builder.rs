//! The builder: settings of an executor, and the functions and modules that it wraps.

use std::path::PathBuf;
use std::sync::Arc;

use candle::{Module, Tensor};

use crate::backend::Function;
use crate::empty::placed;
use crate::executor::OparaExecutor;
use crate::options::{Numerics, OnStateful, OnUncapturable, Options};
use crate::panics::caught;
use crate::scheduling::Scheduling;
use crate::stage::Stage;
use crate::{thread_bound, Error, Result};

/// Settings of an executor; made by [`OparaExecutor::builder`].
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use opara_candle::{ops, OparaExecutor, BuiltIn};
///
/// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
/// let fast = OparaExecutor::builder().scheduler(BuiltIn::Nimble).max_shapes(4).build(ops::relu, &x)?;
/// assert_eq!(fast.report().scheduler(), "nimble");
/// # Ok::<(), opara_candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Builder(pub(crate) Options);

impl Builder {
    /// The scheduler, which assigns launches to streams and orders them. Default: [`BuiltIn::Opara`](crate::BuiltIn::Opara).
    ///
    /// - [`BuiltIn`](crate::BuiltIn) has the library's schedulers.
    /// - [`Search`](crate::Search) benchmarks many schedules on the device, and uses the fastest.
    /// - `Arc::new(own)` is a user's [`Scheduler`](crate::Scheduler). Each of its schedules is checked against the trace: a violated
    ///   dependency is [`Error::InvalidSchedule`](crate::Error::InvalidSchedule).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use opara_candle::{BuiltIn, OparaExecutor, Search};
    /// # use opara_candle::plan::schedule::{Problem, Result, Schedule, Scheduler};
    /// # #[derive(Debug)]
    /// # struct Own;
    /// # impl Scheduler for Own {
    /// #     fn name(&self) -> String { "own".into() }
    /// #     fn schedule(&self, problem: &Problem) -> Result<Schedule> { BuiltIn::Opara.schedule(problem) }
    /// # }
    ///
    /// let fixed = OparaExecutor::builder().scheduler(BuiltIn::Nimble);
    /// let searched = OparaExecutor::builder().scheduler(Search::default().budget(Duration::from_secs(8)));
    /// let own = OparaExecutor::builder().scheduler(Arc::new(Own));
    /// ```
    pub fn scheduler(mut self, scheduler: impl Into<Scheduling>) -> Self {
        self.0.set_scheduling(scheduler.into());
        self
    }

    /// Adds a further example: inputs with the same shapes, dtypes and device as the first example, and other values. May be called
    /// several times. Building calls the module with each example and compares replays on each. Examples are kept, and used again
    /// when these shapes are rebuilt; they are not used for other shapes.
    ///
    /// Building never makes up integers, since an id that is out of range could do harm (see [`verify`](Self::verify)). So only
    /// further examples compare replays on other integers:
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// let table = Tensor::randn(0f32, 1., (10, 4), &Device::Cpu)?;
    /// let rows = move |t: &[Tensor]| Ok(vec![ops::embedding(&table, &t[0])?]);
    /// let ids = |ids: [u32; 2]| Ok::<_, candle::Error>([Tensor::new(&ids, &Device::Cpu)?]);
    /// let fast = OparaExecutor::builder().example(&ids([7, 0])?).build_fn(rows, &ids([1, 2])?)?;
    /// assert_eq!(fast.report().verified_inputs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn example(mut self, inputs: &[Tensor]) -> Self {
        let own = |input: &Tensor| placed(input.detach()).unwrap_or_else(|_| input.clone());
        self.0.further.push(inputs.iter().map(own).collect());
        self
    }

    /// Compares the replay with eager execution, bit for bit, while building. Default: true. With `false`, building calls the module
    /// with examples only.
    ///
    /// Outputs are compared on the example, on [further examples](Self::example), and on copies of the example with altered floats.
    /// On the CPU there are two copies: one negated, reversed and multiplied by 0.75; one multiplied by 16 (or by 1/16, if the product
    /// is not finite). On a GPU, where reads by host code are refused anyway, there is one: reversed, and multiplied by 0.75 if
    /// reversing changes nothing. Integers are never altered.
    ///
    /// It does not find host code that changes its behaviour later, for example at the tenth call.
    pub fn verify(mut self, verify: bool) -> Self {
        self.0.verify = verify;
        self
    }

    /// Promises that the module computes the same operators whatever values its inputs have: on the CPU, its host code may then read
    /// values, such as ids that it checks. Default: false.
    ///
    /// On the CPU candle's own operators are not recorded, so a replay repeats nothing that follows from a value that they read. So
    /// building also runs the module on tensors without values, which candle's operators refuse: a module that reads one runs eagerly.
    /// With this promise that is left out. Replays of a module that breaks it can be wrong where its host code takes another branch than
    /// with all examples; [`recheck`](Self::recheck) finds that some calls later. On a GPU the promise has no effect: captures refuse
    /// every read.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::{ops, Mode, OparaExecutor};
    ///
    /// let checked = |ids: &Tensor| {
    ///     if ids.max_all()?.to_scalar::<u32>()? > 9 {
    ///         candle::bail!("no such id")
    ///     }
    ///     ops::to_dtype(ids, candle::DType::F32)
    /// };
    /// let ids = Tensor::new(&[1u32, 2], &Device::Cpu)?;
    /// let mode = |pure| OparaExecutor::builder().assume_pure(pure).build(checked, &ids).map(|fast| fast.report().mode());
    /// assert_eq!((mode(false)?, mode(true)?), (Mode::Eager, Mode::Threads));
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    pub fn assume_pure(mut self, pure: bool) -> Self {
        self.0.is_pure = pure;
        self
    }

    /// Runs launches that depend on no input once, while building, instead of in every call. Later calls may then miss a weight that
    /// is changed in place. Default: true.
    pub fn fold_constants(mut self, fold: bool) -> Self {
        self.0.settings.fold_constants = fold;
        self
    }

    /// Number of stress replays of a GPU schedule while building. Before each, the arena is filled with NaN, and random launches are
    /// delayed, so that a missing dependency changes the bits of the output. Default: 0. Needs the feature `testing`.
    #[cfg(feature = "testing")]
    pub fn stress(mut self, rounds: u64) -> Self {
        self.0.stress = rounds;
        self
    }

    /// Sets the handling of a module that cannot be captured. Default: [`OnUncapturable::Eager`].
    pub fn on_uncapturable(mut self, action: OnUncapturable) -> Self {
        self.0.on_uncapturable = action;
        self
    }

    /// Sets the handling of a module that keeps state on the host from one call to the next. Default:
    /// [`OnStateful::Error`].
    pub fn on_stateful(mut self, action: OnStateful) -> Self {
        self.0.on_stateful = action;
        self
    }

    /// Maximum number of plans; there is one plan for each set of input shapes and dtypes. At least 1. The least recently used plan is
    /// evicted first, and frees its own memory. All plans share the device memory for tensors inside a pass, which stays as large as
    /// the largest plan needs. Default: 8.
    ///
    /// A build takes as long as hundreds of eager calls. So evicted shapes are rebuilt sixteen times at most. Then they run
    /// eagerly, with a warning and the [reason](crate::Report::reason) in the report, until one of them has been called 1,000 times.
    pub fn max_shapes(mut self, shapes: usize) -> Self {
        self.0.max_shapes = shapes.max(1);
        self
    }

    /// Compares replays with eager execution in production. For each set of shapes, one of `every` calls also runs the module, on
    /// copies of the inputs, and both results must have the same bits. If they differ, the call returns the module's result, the
    /// difference is a `tracing` error and is counted in the [report](crate::Report::mismatches), and these shapes run eagerly from
    /// then on. Default: 0, which never compares.
    ///
    /// This finds changes after the build: host code whose behaviour changes, a changed setting or weight
    /// ([`OparaExecutor::invalidate`]). A comparison costs an eager pass, a copy of the inputs, a comparison on the device, and a wait
    /// for it. The additional pass advances the state of a module that keeps state. If it fails, the call returns its error.
    pub fn recheck(mut self, every: u64) -> Self {
        self.0.recheck = every;
        self
    }

    /// Limit of a plan's device memory, beside weights, inputs and outputs, as a multiple of the peak of the module's own forward pass.
    /// A higher limit lets more branches run in parallel and more constants be folded. 1 or less uses as little memory as possible.
    /// Default: 1.15. Of an accurate training step it is a multiple of the memory that its launches need one after the other, and 1.025 by
    /// default; constants take a sixteenth of that in addition, at most.
    pub fn memory_factor(mut self, factor: f64) -> Self {
        self.0.settings.memory_factor = Some(factor);
        self
    }

    /// Limit of a training step's device memory, beside variables, moments, batch and outputs, in bytes: `Counts::arena_bytes` of its
    /// report. Default: none.
    ///
    /// The way back reads values of the way forward. Where they take more than the limit, [`build_train`](Self::build_train) divides the
    /// forward pass into segments, keeps the values that later ones read, and computes each segment again on the way back. Losses and
    /// gradients keep their bits. An estimate says how many segments fit; where the built step takes more, it builds one of
    /// more segments. For batches of other shapes there is the estimate alone, and for steps that run eagerly no limit.
    pub fn train_memory(mut self, bytes: u64) -> Self {
        self.0.train_memory = Some(bytes);
        self
    }

    /// Benchmarks the chosen schedule on the GPU against up to three challengers while building, and keeps the fastest: the
    /// sequential schedule; the graph's own edges in recorded order ([`BuiltIn::Dag`](opara_plan::schedule::BuiltIn::Dag), if that makes at
    /// most 1,024 branches); and, if the schedule has more than 32 streams, the same on 32. Graphs above 4,096 launches are not
    /// benchmarked. A [rewritten](Self::numerics) pass is benchmarked against the one with the module's bits, and stays only if it is
    /// faster. Default: true.
    pub fn benchmark_challengers(mut self, benchmark: bool) -> Self {
        self.0.benchmark_challengers = benchmark;
        self
    }

    /// Fuses candle's kernels on a GPU: consecutive element-wise ops (casts, sums, products, activations in f32, f16 and bf16) and
    /// row-wise ops on rows of up to 4,096 elements (sums, maxima, minima, softmax, norms) become one launch. Norms, softmax, ops on
    /// strided operands and ops on many elements are also replaced alone, by a faster kernel.
    ///
    /// The kernels are generated, and compiled by NVRTC while building. That takes tenths of a second on several cores; compiled
    /// kernels are [cached](Self::cache_folder). The bits stay the same, since every op rounds and adds up as candle's kernel does. If
    /// a replay still differs from eager execution, the plan is rebuilt without fusion. A kernel that does not compile leaves its
    /// launches unfused; without NVRTC none are fused. The [report](crate::Report::notes) says so. NVRTC is loaded from the toolkit
    /// of the build, or from the library that the environment variable `OPARA_NVRTC` names. Default: true.
    pub fn fuse(mut self, fuse: bool) -> Self {
        self.0.fuse = fuse;
        self
    }

    /// Replays have the module's accuracy instead of its bits: [`Numerics::Accurate`], which is the fast way.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
    /// let fast = OparaExecutor::builder().accurate().build(ops::relu, &x)?;
    /// assert!(fast.report().rewrites().is_empty()); // A CPU runs what it is given.
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    pub fn accurate(self) -> Self {
        self.numerics(Numerics::Accurate)
    }

    /// Chooses whether replays have the module's bits or its accuracy. Default: [`Numerics::Exact`].
    ///
    /// [`recheck`](Self::recheck) compares bits, so with it replays stay exact.
    pub fn numerics(mut self, numerics: Numerics) -> Self {
        self.0.numerics = numerics;
        self
    }

    /// Leaves out a rule of [`Numerics::Accurate`], by its name in [`Report::rewrites`](crate::Report::rewrites). An unknown name
    /// has no effect. May be called several times.
    pub fn without_rule(mut self, rule: impl Into<String>) -> Self {
        self.0.without.push(rule.into());
        self
    }

    /// Cache folder for compiled kernels, rewrite decisions and chosen algorithms; `None` switches the cache off.
    ///
    /// - Compiled kernels of [fused](Self::fuse) launches: one file per module, about 10 KB per kernel. Its name is a hash of source,
    ///   architecture and compiler, so that no file can be stale; a damaged file is compiled again.
    /// - Decisions of [rewriting](Self::numerics): one file per pass. A later build compares results on its own examples all the same.
    /// - The fastest implementation of each convolution and each product with a weight that building measured: one file each.
    ///
    /// If all in the folder exceeds 256 MiB, the least recently used files are deleted. Other files are never touched. Default:
    /// `opara-candle` in the user's cache folder.
    pub fn cache_folder(mut self, folder: Option<PathBuf>) -> Self {
        self.0.kernels = folder;
        self
    }

    /// Writes the result of each build [`Stage`] to a subfolder that is named by dtypes and shapes of the inputs
    /// (`f32-1x3x224x224`): `1-record.trace`, `2-rewrite.trace`, `3-fuse.trace` and `4-fold.trace` for `opara`, `5-analyse.dot` for
    /// Graphviz, `6-place.json`, `7-schedule.json`, `8-instantiate.json` (the schedule that was the fastest) and `9-verify.json`
    /// (the report). If a [rewritten](Self::numerics) pass is benchmarked against the one with the module's bits, the subfolder
    /// `exact plan` has the files of that one from `3-fuse.trace` on. A file that cannot be written is a warning. Default: nothing is written.
    pub fn dump(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.dump = Some(folder.into());
        self
    }

    /// Stops building after this stage. Calls then run the module, and the report gives this as the reason.
    /// [`OparaExecutor::recorded_trace`] and [`OparaExecutor::trace`] return the results of the stages `record` and `fuse`.
    /// Default: all stages.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::{ops, OparaExecutor, Stage};
    ///
    /// let x = Tensor::ones(4, candle::DType::F32, &Device::Cpu)?;
    /// let recorded = OparaExecutor::builder().stop_after(Stage::Record).build(ops::relu, &x)?;
    /// let inputs = [x];
    /// assert_eq!(recorded.recorded_trace(&inputs)?.ops.len(), 1);
    /// assert!(recorded.trace(&inputs).is_err() && recorded.schedule(&inputs).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_after(mut self, stage: Stage) -> Self {
        self.0.stop_after = Some(stage);
        self
    }

    /// Wraps a module from one tensor to one tensor. For a module that is not [`Send`] use
    /// [`build_local`](Self::build_local).
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    // The compiler shows the line of the bound that a module does not meet, and with it the way out.
    pub fn build(
        self,
        module: impl Module + Send + Sync + 'static, // Not `Send`? Use `Builder::build_local`.
        input: &Tensor,
    ) -> Result<OparaExecutor> {
        self.build_fn(move |inputs| Ok(vec![module.forward(&inputs[0])?]), std::slice::from_ref(input))
    }

    /// Wraps a function from several tensors to several tensors. `inputs` are an example, all on one device. For a function that is
    /// not [`Send`] use [`build_local`](Self::build_local).
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    pub fn build_fn<F>(self, function: F, inputs: &[Tensor]) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        self.check_examples(inputs)?;
        OparaExecutor::wrap(self.0, guarded(function), inputs).map(OparaExecutor::warned)
    }

    /// Wraps a function that is not [`Send`], as [`OparaExecutor::new_local`] wraps such a module: `make` makes it on a thread of this
    /// library, which then owns it. `inputs` are an example, all on one device.
    ///
    /// ```
    /// use candle::{Device, Module, Tensor};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// let make = || {
    ///     let layers = candle_nn::seq().add(ops::relu);
    ///     Ok(move |inputs: &[Tensor]| Ok(vec![layers.forward(&inputs[0])?]))
    /// };
    /// let x = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
    /// let fast = OparaExecutor::builder().accurate().build_local(make, &[x])?;
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OparaExecutor::new_local`].
    pub fn build_local<F>(
        self,
        make: impl FnOnce() -> candle::Result<F> + Send + 'static,
        inputs: &[Tensor],
    ) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
    {
        self.check_examples(inputs)?;
        OparaExecutor::wrap(self.0, thread_bound::build(make, inputs)?, inputs).map(OparaExecutor::warned)
    }

    /// Checks that further examples have the shapes, dtypes and device of the first.
    pub(crate) fn check_examples(&self, inputs: &[Tensor]) -> Result<()> {
        for (example, further) in self.0.further.iter().enumerate() {
            if further.len() != inputs.len() {
                return Err(Error::InputCount { expected: inputs.len(), got: further.len() });
            }
            for (index, (first, other)) in inputs.iter().zip(further).enumerate() {
                let (expected, got) = (first.device().location(), other.device().location());
                if expected != got {
                    return Err(Error::InputDevice { index, expected, got });
                }
                if first.shape() != other.shape() || first.dtype() != other.dtype() {
                    let (expected, got) = (first.shape().clone(), other.shape().clone());
                    let (expected_dtype, got_dtype) = (first.dtype(), other.dtype());
                    return Err(Error::ExampleShape { example, index, expected, expected_dtype, got, got_dtype });
                }
            }
        }
        Ok(())
    }
}

/// The function with panics turned into errors.
fn guarded<F>(function: F) -> Function
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
{
    Arc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))
}
