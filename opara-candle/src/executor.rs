//! `OparaExecutor`: wraps a module, keeps its type, answers faster.

use std::cell::Cell;
use std::sync::Arc;

use candle::{DType, DeviceLocation, Module, Tensor};
use parking_lot::Mutex;

use crate::backend::Function;
use crate::builder::{Builder, Options};
use crate::plan::{Plan, Planned};
use crate::report::Report;
use crate::schedule::Schedule;
use crate::simulate::{simulate, Device as Described};
use crate::timeline::Timeline;
use crate::trace::Trace;
use crate::{cuda, Error, Result};

/// Shapes and dtypes of a call.
type Key = Vec<(Vec<usize>, DType)>;

/// A module whose forward pass is recorded once for each shape of input, scheduled on parallel streams, and replayed.
///
/// On CUDA a replay is one launch of one graph; on the CPU it runs on worker threads. What cannot be captured runs as
/// before, and [`report`](Self::report) says why.
///
/// The module must compute its outputs from its inputs and its weights alone, by the same operators at every call.
/// Weights are constants: build anew after changing them (or see [`Builder::fold_constants`]).
///
/// ```
/// use candle::{Device, Module, Tensor};
/// use opara_candle::{ops, OparaExecutor};
///
/// let weight = Tensor::randn(0f32, 1., (4, 4), &Device::Cpu)?;
/// let module = move |x: &Tensor| {
///     let left = ops::relu(&ops::matmul(x, &weight)?)?;
///     let right = ops::tanh(x)?;
///     ops::add(&left, &right)
/// };
/// let x = Tensor::randn(0f32, 1., (2, 4), &Device::Cpu)?;
/// let fast = OparaExecutor::new(module, &x)?;
/// let y = fast.forward(&x)?;
/// assert_eq!(y.dims(), [2, 4]);
/// println!("{}", fast.report());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OparaExecutor {
    function: Function,
    example: Vec<(DeviceLocation, DType)>,
    options: Options,
    /// Most recently used last.
    plans: Mutex<Vec<(Key, Arc<Plan>)>>,
    /// Held while a plan is built, so that one shape is built once.
    building: Mutex<()>,
    /// Device memory that all plans share.
    arena: Arc<cuda::Arena>,
}

impl OparaExecutor {
    /// Wraps `module` and builds for inputs like `input`. For modules that are not [`Send`], see [`load`](Self::load).
    ///
    /// # How often building calls the module
    /// For each set of input shapes and dtypes:
    ///
    /// | calls | on the CPU | on a GPU |
    /// |---|---|---|
    /// | on the example | 1 | 1 |
    /// | on each [further example](Builder::example), for its shapes | 1 | 1 |
    /// | on copies of the example with other floats, if it holds floats and is [verified](Builder::verify) | 2 | 1 |
    /// | on the example again, which must give the same bits | 1 | 1 |
    /// | while it is captured: nothing is computed | | 2 |
    ///
    /// So usually 4 on the CPU and 5 on a GPU; 2 and 4 for integers alone. More only for a reason: a capture is repeated for
    /// an output that is an input, a weight or a view, where the driver breaks it off, or where two captures differ in a
    /// library's kernels. Where something speaks against a recording, the example is called again, once on the CPU and twice
    /// on a GPU, to tell whether that is state. All is done twice if kernels that were fused prove wrong. A module of plain
    /// candle operators on the CPU is called twice. [`OnStateful::Eager`](crate::OnStateful::Eager) calls it 0 times.
    ///
    /// # Errors
    /// The module's own errors, [`Error::Panicked`] if it panics, [`Error::Driver`] if the driver refuses something
    /// that it should not. [`Error::Stateful`] if it keeps state on the host, or draws random numbers in a way that cannot be
    /// told from state; tables that the first call makes, and later ones find, are none. A module that cannot be captured is no
    /// error: it runs eagerly.
    pub fn new(module: impl Module + Send + Sync + 'static, input: &Tensor) -> Result<Self> {
        Self::builder().build(module, input)
    }

    /// Wraps a module that is not [`Send`] or not [`Sync`], such as one that holds a [`candle_nn::Sequential`]: `make`
    /// makes it on a thread of this library, where it lives, and is dropped some time after the executor.
    ///
    /// The executor itself may go to any thread, and replays run on the caller's. Calls that run the module (of a new
    /// shape, or in eager mode) take turns on that one thread with all other modules that live there, and with captures.
    /// So `make` and the module must not wait for a thread that uses an executor; an executor that they call themselves
    /// runs its own module as it is.
    ///
    /// ```
    /// use candle::{DType, Device, Module, Tensor};
    /// use candle_nn::VarBuilder;
    /// use opara_candle::{nn, ops, OparaExecutor};
    ///
    /// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// let make = move || {
    ///     let up = nn::linear(4, 16, vb.pp("up"))?;
    ///     let down = nn::linear(16, 4, vb.pp("down"))?;
    ///     Ok(candle_nn::seq().add(up).add(ops::gelu).add(down))
    /// };
    /// let x = Tensor::randn(0f32, 1., (2, 4), &Device::Cpu)?;
    /// let fast = OparaExecutor::load(make, &x)?;
    /// std::thread::spawn(move || fast.forward(&x)).join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `make`, [`Error::Panicked`] if it panics, and those of [`new`](Self::new).
    pub fn load<M: Module + 'static>(
        make: impl FnOnce() -> candle::Result<M> + Send + 'static,
        input: &Tensor,
    ) -> Result<Self> {
        Self::builder().load(make, input)
    }

    /// Settings other than the defaults, and functions of several tensors.
    pub fn builder() -> Builder {
        Builder(Options::default())
    }

    /// Builds for inputs like these.
    pub(crate) fn wrap(options: Options, function: Function, inputs: &[Tensor]) -> Result<Self> {
        let executor = Self {
            function,
            example: inputs.iter().map(|t| (t.device().location(), t.dtype())).collect(),
            options,
            plans: Mutex::default(),
            building: Mutex::new(()),
            arena: Default::default(),
        };
        executor.check(inputs)?;
        executor.plan(inputs)?;
        Ok(executor)
    }

    /// Outputs of their own, which no later call overwrites.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::InputDevice`] and [`Error::InputDType`] for inputs that do not fit; for a new
    /// shape those of [`new`](Self::new).
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.check(inputs)?;
        if is_nested() {
            return Ok((self.function)(inputs)?);
        }
        match &self.plan(inputs)?.replay {
            Some(replay) => replay.call(inputs),
            None => self.eager(inputs),
        }
    }

    fn eager(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok((self.function)(inputs)?)
    }

    /// Lends the outputs to `f` without copying them: the next call overwrites them, so a tensor that must outlive `f`
    /// has to be copied there ([`Tensor::copy`]). Other calls of the same shape wait until `f` returns.
    ///
    /// # Errors
    /// Those of [`call`](Self::call), and [`Error::Lent`] if `f` calls this executor with inputs of the same shapes.
    pub fn lend<R>(&self, inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> R) -> Result<R> {
        self.check(inputs)?;
        if is_nested() {
            return Ok(f(&(self.function)(inputs)?));
        }
        let plan = self.plan(inputs)?;
        let Some(replay) = &plan.replay else { return Ok(f(&self.eager(inputs)?)) };
        let (mut f, mut result) = (Some(f), None);
        replay.lend(inputs, &mut |outputs| result = f.take().map(|f| f(outputs)))?;
        result.ok_or_else(|| Error::Internal { message: "the replay lent no outputs".into() })
    }

    /// What was built for the shapes used last.
    pub fn report(&self) -> Report {
        let plans = self.plans.lock();
        match plans.last() {
            Some((_, plan)) => plan.report.clone(),
            None => unreachable!("an executor is built with its first plan"),
        }
    }

    /// The schedule of the shapes used last as a picture in SVG: its simulated timeline, one lane a stream. `None` in
    /// eager mode.
    pub fn picture(&self) -> Option<String> {
        self.planned(|Planned { prepared, schedule, .. }| {
            let trace = &prepared.ops.trace;
            let timeline = simulate(&prepared.problem(), schedule, &Described::of(&trace.device));
            let (ops, streams, waits) = (trace.ops.len(), schedule.streams(), schedule.wait_count());
            let title = format!("{ops} ops on {streams} streams, {waits} waits, simulated on {}", trace.device.name);
            timeline.to_svg(trace, &title)
        })
    }

    /// What was recorded for the shapes used last. `None` in eager mode.
    pub fn trace(&self) -> Option<Trace> {
        self.planned(|planned| (*planned.trace).clone())
    }

    /// What was recorded for inputs like these, with all that can be measured of it: the time that each op takes alone
    /// on the device, and for each policy, and for the DAG with the edges that others imply, the time of a replay and the
    /// share of the device in use.
    ///
    /// An op's time is its median over replays of the sequential schedule, in which it finds its counters, workspaces
    /// and operands as it should. Ops that are folded into constants run in no replay and have none. Policies are replayed
    /// in turns. Single ops are measured by CUPTI, which must be installed; no profiler may be attached.
    ///
    /// # Errors
    /// [`Error::NotMeasurable`] in eager mode and on the CPU, [`Error::Driver`] if CUPTI cannot be used, and those of
    /// [`call`](Self::call).
    pub fn measure(&self, inputs: &[Tensor]) -> Result<Trace> {
        let (plan, planned) = self.measurable(inputs)?;
        planned.measure(plan.replay.as_deref().ok_or(Error::NotMeasurable)?, inputs)
    }

    /// When each op of the schedule ran in one replay: the one of median length of some.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn timeline(&self, inputs: &[Tensor]) -> Result<Timeline> {
        let (_, planned) = self.measurable(inputs)?;
        planned.timeline(inputs)
    }

    /// The ops that every call runs, which the timeline's spans refer to, and how they are scheduled, for the shapes used
    /// last. `None` in eager mode.
    pub fn schedule(&self) -> Option<(Trace, Schedule)> {
        self.planned(|planned| (planned.prepared.ops.trace.clone(), planned.schedule.clone()))
    }

    fn measurable(&self, inputs: &[Tensor]) -> Result<(Arc<Plan>, Arc<Planned>)> {
        self.check(inputs)?;
        let plan = self.plan(inputs)?;
        let planned = plan.planned.clone().ok_or(Error::NotMeasurable)?;
        Ok((plan, planned))
    }

    fn planned<T>(&self, f: impl FnOnce(&Planned) -> T) -> Option<T> {
        let plan = self.plans.lock().last().map(|(_, plan)| plan.clone())?;
        plan.planned.as_deref().map(f)
    }

    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.example.len() {
            return Err(Error::InputCount { expected: self.example.len(), got: inputs.len() });
        }
        let expected = self.example.first().map(|(location, _)| *location);
        for (index, input) in inputs.iter().enumerate() {
            let got = input.device().location();
            if let Some(expected) = expected.filter(|e| *e != got) {
                return Err(Error::InputDevice { index, expected, got });
            }
        }
        Ok(())
    }

    fn plan(&self, inputs: &[Tensor]) -> Result<Arc<Plan>> {
        let key: Key = inputs.iter().map(|t| (t.dims().to_vec(), t.dtype())).collect();
        if let Some(plan) = self.cached(&key) {
            return Ok(plan);
        }
        let _building = self.building.lock();
        if let Some(plan) = self.cached(&key) {
            return Ok(plan);
        }
        let position = |plans: &[(Key, Arc<Plan>)]| plans.iter().position(|(k, _)| *k == key);
        if position(&self.plans.lock()).is_some() {
            tracing::warn!("the module freed memory that a plan reads: it is built anew");
        }
        let plan = Plan::build(&self.function, inputs, &self.options, &self.arena)
            .map_err(|error| self.blame_dtype(error, &key))?;
        let plan = Arc::new(plan);
        let mut plans = self.plans.lock();
        let full = (plans.len() >= self.options.max_shapes).then_some(0);
        let replaced = position(&plans).or(full).map(|at| plans.remove(at));
        plans.push((key, plan.clone()));
        drop(plans);
        // Outside of the lock: this waits for the plan's last replay.
        drop(replaced);
        Ok(plan)
    }

    fn cached(&self, key: &Key) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock();
        let at = plans.iter().rposition(|(k, _)| k == key)?;
        // It stays for reports until another one takes its place.
        if plans[at].1.replay.as_ref().is_some_and(|replay| replay.is_stale()) {
            return None;
        }
        plans[at..].rotate_left(1);
        plans.last().map(|(_, plan)| plan.clone())
    }

    /// An error of the module on a dtype that the example did not have is about that dtype.
    fn blame_dtype(&self, error: Error, key: &Key) -> Error {
        let differs = |((_, expected), (_, got)): (&(DeviceLocation, DType), &(Vec<usize>, DType))| expected != got;
        match (error, self.example.iter().zip(key).position(differs)) {
            (Error::Candle(source), Some(index)) => {
                Error::InputDType { index, expected: self.example[index].1, got: key[index].1, source }
            }
            (error, _) => error,
        }
    }
}

impl Module for OparaExecutor {
    fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        let mut outputs = self.call(std::slice::from_ref(x))?;
        outputs.pop().ok_or_else(|| candle::Error::msg("the wrapped function returned no tensor"))
    }
}

impl std::fmt::Debug for OparaExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OparaExecutor").field("options", &self.options).finish_non_exhaustive()
    }
}

thread_local! {
    static NESTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this call is part of another executor's recording or replay, or runs on a capture thread. The wrapped module
/// then runs as it is: in a recording the outer executor sees its operators, and in a replay nobody waits for workers
/// that wait for him.
fn is_nested() -> bool {
    NESTED.get()
}

/// Runs `f` as part of a recording or a replay.
pub(crate) fn nested<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            NESTED.set(self.0);
        }
    }
    let _restore = Restore(NESTED.replace(true));
    f()
}
