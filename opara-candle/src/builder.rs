//! How executors are built: settings, and functions and modules of every kind.

use std::path::PathBuf;
use std::sync::Arc;

use candle::{Module, Tensor};

use crate::backend::Function;
use crate::error::caught;
use crate::executor::OparaExecutor;
use crate::options::{Numerics, OnStateful, OnUncapturable, Options};
use crate::pipeline::stage::Stage;
use crate::report::Report;
use crate::scheduling::Scheduling;
use crate::{thread_bound, Error, Result};

/// Settings of an executor; made by [`OparaExecutor::builder`].
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use opara_candle::{ops, OparaExecutor, Policy};
///
/// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
/// let fast = OparaExecutor::builder().policy(Policy::Nimble).max_shapes(4).build(ops::relu, &x)?;
/// assert_eq!(fast.report().policy, "nimble");
/// # Ok::<(), opara_candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Builder(pub(crate) Options);

impl Builder {
    /// How launches are assigned to streams and ordered: a [`Policy`](crate::Policy), [`Tuning`](crate::Tuning) for a search with
    /// settings of its own, or [`Scheduling::by`] for a scheduler of the user's own. Default:
    /// [`Policy::Opara`](crate::Policy::Opara).
    pub fn policy(mut self, scheduling: impl Into<Scheduling>) -> Self {
        self.0.set_scheduling(scheduling.into());
        self
    }

    /// A further example: inputs of the shapes, dtypes and device of those that the executor is built with, and with other
    /// values. May be called several times. Building calls the module with each, compares replays on each, and keeps them to
    /// build anew for these shapes; for other shapes they are not used.
    ///
    /// Integers never get made-up values, since an id that is out of range would do harm (see [`verify`](Self::verify)). So
    /// further examples are the one way to find that a module's host code looks at integers:
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::{ops, Mode, OparaExecutor};
    ///
    /// let decode = |t: &[Tensor]| match t[1].to_scalar::<u32>()? {
    ///     0 => Ok(vec![ops::relu(&t[0])?]),
    ///     _ => Ok(vec![ops::tanh(&t[0])?]),
    /// };
    /// let inputs = |mode: u32| Ok::<_, candle::Error>([Tensor::new(&[-1f32, 1.], &Device::Cpu)?, Tensor::new(mode, &Device::Cpu)?]);
    /// let fast = OparaExecutor::builder().example(&inputs(1)?).build_fn(decode, &inputs(0)?)?;
    /// assert_eq!(fast.report().mode, Mode::Eager); // Its operators depend on the mode.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn example(mut self, inputs: &[Tensor]) -> Self {
        self.0.further.push(inputs.to_vec());
        self
    }

    /// Whether replay is compared with eager, bit for bit, while the executor is built. Default: yes. If not, building calls
    /// the module with nothing but examples.
    ///
    /// Compared are the example, [further examples](Self::example), and copies of the example with other floats. On the CPU
    /// these are one with the other signs, in reversed order and 0.75 times as large, and one that is 16 times as large (or a
    /// 16th, if that is not finite). On a GPU, where host code that reads values is refused anyway, it is one in reversed
    /// order, and 0.75 times as large if that alone changes nothing. Integers are those of an example.
    ///
    /// This finds most modules whose host code looks at values: a branch on the sign of a sum, a scale that is read from an
    /// input. They run eagerly. What it cannot find, on the CPU:
    ///
    /// - a branch on integers that are the same in all examples, such as a mode or a position that is 0 in the only example.
    ///   [`Report::same_in_all`](crate::Report::same_in_all) lists such inputs, and a warning names them;
    /// - a branch on floats that all examples, and the two altered copies, take the same way, such as `max > 1000`;
    /// - host code that changes what it does after some calls, such as at the tenth.
    pub fn verify(mut self, verify: bool) -> Self {
        self.0.verify = verify;
        self
    }

    /// Whether launches that depend on no input run once, while the executor is built. Then a weight that changes in
    /// place may not be seen by later calls. Default: yes.
    pub fn fold_constants(mut self, fold: bool) -> Self {
        self.0.settings.fold_constants = fold;
        self
    }

    /// How many times a GPU's schedule is put under stress while the executor is built: the arena is filled with NaN
    /// before each replay and random launches are held up, so that an edge that is missing shows as other bits than
    /// eager's. Default: 0. With the feature `testing` alone.
    #[cfg(feature = "testing")]
    pub fn stress(mut self, rounds: u64) -> Self {
        self.0.stress = rounds;
        self
    }

    /// What to do with a module that cannot be captured. Default: [`OnUncapturable::Eager`].
    pub fn on_uncapturable(mut self, action: OnUncapturable) -> Self {
        self.0.on_uncapturable = action;
        self
    }

    /// What to do with a module that keeps state on the host from one call to the next. Default: [`OnStateful::Error`].
    pub fn on_stateful(mut self, action: OnStateful) -> Self {
        self.0.on_stateful = action;
        self
    }

    /// For how many sets of input shapes and dtypes a plan is kept, at least one; the least recently used goes first, with
    /// all memory that is its own. Device memory for tensors inside a pass is shared by all plans and stays as large as the
    /// largest has needed. Default: 8.
    ///
    /// A build takes as long as some hundred eager calls. So shapes that come back after they had to go are built again
    /// sixteen times only; then they run eagerly, with a warning, until one of them has been called 1,000 times. The
    /// [report](crate::Report::reason) says so.
    pub fn max_shapes(mut self, shapes: usize) -> Self {
        self.0.max_shapes = shapes.max(1);
        self
    }

    /// Compares replays with eager execution in production: of the calls of each set of shapes, one in so many also runs
    /// the module, on copies of the inputs, and both answers must have the same bits. If they do not, that is an error in
    /// `tracing`, it is counted in the [report](crate::Report::mismatches), the call's answer is the module's, and these
    /// shapes run eagerly from then on. 0 never does so, which is the default.
    ///
    /// This finds what no check while building can: host code of the module that changes its mind later, a setting or a
    /// weight that was changed ([`OparaExecutor::invalidate`]). It costs an eager pass, a copy of the inputs and a
    /// comparison on the device every so many calls, and a wait for that. A module that keeps state is moved on by the
    /// additional pass; an error of that pass is the call's.
    pub fn recheck(mut self, every: u64) -> Self {
        self.0.recheck = every;
        self
    }

    /// How much device memory a plan may take beside weights, inputs and outputs, as a multiple of what the module's own
    /// forward pass holds at its peak. More lets more branches run at the same time and keeps more constants; 1 or less
    /// makes do with the least. Default: 1.15.
    pub fn memory_factor(mut self, factor: f64) -> Self {
        self.0.settings.memory_factor = factor;
        self
    }

    /// Whether a GPU's schedule of up to 4,096 launches that measures slower than the sequential one, than the graph's own edges
    /// in recorded order ([`Policy::Dag`](crate::schedule::Policy::Dag), if that makes no more than 1,024 branches), or, if it
    /// has more than 32 streams, than itself on 32, gives way to that. Default: yes.
    pub fn race(mut self, race: bool) -> Self {
        self.0.race = race;
        self
    }

    /// Whether chains of candle's kernels that go through the same elements become one launch each on a GPU: casts, sums,
    /// products, activations of f32, f16 and bf16, and what is made of rows of up to 4,096 elements: sums, maxima, minima,
    /// softmax, and norms. Alone, norms, softmax, what is not contiguous and what has many elements are replaced by a faster
    /// launch. Each is a kernel of its own, compiled by NVRTC while the executor is built, which takes tenths of a second on
    /// several cores, and is [kept](Self::kernel_cache). The bits stay the same, since all is rounded and added up as candle does it;
    /// should a replay differ from eager execution all the same, the plan is built once more without. Where the compiler refuses a
    /// kernel, its launches stay as they are; where NVRTC is not installed, all do. The [report](crate::Report::notes) says so.
    /// NVRTC is loaded from the toolkit that the program was built with, or from the library that the environment variable
    /// `OPARA_NVRTC` names. Default: yes.
    pub fn fuse(mut self, fuse: bool) -> Self {
        self.0.fuse = fuse;
        self
    }

    /// What a replay has in common with the module's own answers: their bits, or their accuracy. Default:
    /// [`Numerics::Exact`].
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use opara_candle::{ops, Numerics, OparaExecutor};
    ///
    /// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
    /// let fast = OparaExecutor::builder().numerics(Numerics::Accurate).build(ops::relu, &x)?;
    /// assert!(fast.report().rewrites.is_empty()); // A CPU runs what it is given.
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// With [`recheck`](Self::recheck), which compares bits, they stay exact.
    pub fn numerics(mut self, numerics: Numerics) -> Self {
        self.0.numerics = numerics;
        self
    }

    /// Leaves out a rule of [`Numerics::Accurate`], by its name in [`Report::rewrites`](crate::Report::rewrites). A name that is
    /// none leaves out nothing. May be called several times.
    pub fn without_rule(mut self, rule: impl Into<String>) -> Self {
        self.0.without.push(rule.into());
        self
    }

    /// Folder that keeps kernels which were compiled for [fused](Self::fuse) launches from one start of the program to the next;
    /// `None` keeps none. A file a module, some 10 KB a kernel, named by a hash of source, architecture and compiler, so that
    /// none is ever stale; what is damaged is compiled anew. When the kernels and plans in a folder exceed 256 MiB, the least
    /// recently used files go. Other files are never touched. Default: `opara-candle` in the user's folder for caches.
    pub fn kernel_cache(mut self, folder: Option<PathBuf>) -> Self {
        self.0.kernels = folder;
        self
    }

    /// Writes what each [`Stage`] of building gave to a folder inside this one, named by dtypes and shapes of the inputs
    /// (`f32-1x3x224x224`): `1-record.trace`, `2-rewrite.trace`, `3-fuse.trace` and `4-fold.trace` for `opara`, `5-analyse.dot` for
    /// Graphviz, `6-place.json`, `7-schedule.json`, `8-instantiate.json` (the schedule that was the fastest) and `9-verify.json`
    /// (the report). What cannot be written is a warning. Default: nothing is written.
    pub fn dump(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.dump = Some(folder.into());
        self
    }

    /// Builds no further than this stage. Calls then run the module, as the report's reason says;
    /// [`OparaExecutor::recorded_trace`] and [`OparaExecutor::trace`] give what the stages `record` and `fuse` made.
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

    /// Wraps a module of one tensor to one tensor. One that is not [`Send`] goes to [`load`](Self::load).
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    // The compiler shows the line of the bound that a module does not meet, and with it the way out.
    pub fn build(
        self,
        module: impl Module + Send + Sync + 'static, // Not `Send`? Use `Builder::load(move || make(), &input)`.
        input: &Tensor,
    ) -> Result<OparaExecutor> {
        self.build_fn(move |inputs| Ok(vec![module.forward(&inputs[0])?]), std::slice::from_ref(input))
    }

    /// Wraps a function of several tensors to several tensors. `inputs` are an example, all on one device. A function that
    /// is not [`Send`] goes to [`load_fn`](Self::load_fn).
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    pub fn build_fn<F>(self, function: F, inputs: &[Tensor]) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        self.check_examples(inputs)?;
        OparaExecutor::wrap(self.0, guarded(function), inputs).map(warned)
    }

    /// Wraps a module that is made where it then lives.
    ///
    /// # Errors
    /// See [`OparaExecutor::load`].
    pub fn load<M: Module + 'static>(
        self,
        make: impl FnOnce() -> candle::Result<M> + Send + 'static,
        input: &Tensor,
    ) -> Result<OparaExecutor> {
        let make = move || {
            let module = make()?;
            Ok(move |inputs: &[Tensor]| Ok(vec![module.forward(&inputs[0])?]))
        };
        self.load_fn(make, std::slice::from_ref(input))
    }

    /// Wraps a function of several tensors to several tensors that is made where it then lives. `inputs` are an
    /// example, all on one device.
    ///
    /// # Errors
    /// See [`OparaExecutor::load`].
    pub fn load_fn<F>(
        self,
        make: impl FnOnce() -> candle::Result<F> + Send + 'static,
        inputs: &[Tensor],
    ) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
    {
        self.check_examples(inputs)?;
        OparaExecutor::wrap(self.0, thread_bound::build(make, inputs)?, inputs).map(warned)
    }

    /// Checks that further examples have the shapes, dtypes and device of the first.
    fn check_examples(&self, inputs: &[Tensor]) -> Result<()> {
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

/// The executor, with a warning about inputs whose values verification could not change.
fn warned(executor: OparaExecutor) -> OparaExecutor {
    let Report { same_in_all, verified_inputs, .. } = executor.report();
    if !same_in_all.is_empty() {
        tracing::warn!(
            inputs = ?same_in_all,
            verified_inputs,
            "verification changes no integers: give `Builder::example` inputs with other ones, to check that the module \
             does not depend on them in a way that a replay does not follow"
        );
    }
    executor
}

/// The function with panics turned into errors.
fn guarded<F>(function: F) -> Function
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
{
    Arc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))
}
