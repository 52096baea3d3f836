//! `OparaExecutor`: wraps a module, keeps its type, answers faster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use candle::{DType, DeviceLocation, Module, Tensor};
use parking_lot::Mutex;

use crate::backend::{Function, Replay};
use crate::eager_calls::EagerCalls;
use crate::empty::{all_placed, placed};
use crate::environment::Environment;
use crate::host_copies::HostCopies;
use crate::options::{OnUncapturable, Options};
use crate::pipeline::{self, Plan};
use crate::plans::{Entry, Plans};
use crate::recheck::Rechecks;
use crate::reentrancy::is_nested;
use crate::shapes::{key, Key};
use crate::{cuda, gradient, zero_copy, Error, Result};

/// Makes the arguments that a plan is built on, if one is to be built.
pub(crate) type BuiltOn<'a> = &'a dyn Fn() -> Result<Vec<Tensor>>;

/// Number of times that one call rebuilds a plan whose memory the module freed. Then the module runs eagerly.
const ATTEMPTS: usize = 4;

/// Records a module's forward pass once for each shape of input, schedules it on parallel streams, and replays it.
///
/// On CUDA a replay is one launch of one graph; on the CPU it runs on worker threads. A module that cannot be captured
/// runs eagerly, and [`report`](Self::report) says why.
///
/// The module must compute its outputs from its inputs and its weights alone, by the same operators at every call.
/// Weights are constants: call [`invalidate`](Self::invalidate) after changing them.
///
/// Threads may share an executor. Plans of one executor are built one at a time. No call waits for a build: while a plan is built,
/// calls of other shapes that have no plan run the module eagerly. So a module may wait for threads that call its own executor.
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
    /// Tells this executor from others.
    id: u64,
    pub(crate) plans: Plans,
    /// Held while a plan is built: a shape is built once, and concurrent builds do not disturb each other's module. Nothing waits for
    /// it, since the module may wait for the thread that would.
    building: Mutex<()>,
    pub(crate) rechecks: Rechecks,
    /// Device memory that all plans share.
    arena: Mutex<Arc<cuda::Arena>>,
    pub(crate) host_copies: HostCopies,
    eager_calls: EagerCalls,
}

impl OparaExecutor {
    /// Builds for inputs like these.
    pub(crate) fn wrap(options: Options, function: Function, inputs: &[Tensor]) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let options = options.under(Environment::get());
        let function: Function = Arc::new(move |inputs| function(inputs)?.into_iter().map(placed).collect());
        let executor = Self {
            function,
            example: inputs.iter().map(|t| (t.device().location(), t.dtype())).collect(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            plans: Plans::new(options.max_shapes, key(inputs)),
            building: Mutex::new(()),
            rechecks: Rechecks::new(options.recheck),
            arena: Default::default(),
            host_copies: HostCopies::default(),
            eager_calls: EagerCalls::default(),
            options,
        };
        executor.check(inputs)?;
        executor.plan(&key(inputs), &|| Ok(inputs.to_vec()))?;
        Ok(executor)
    }

    /// Replays the module, and returns new output tensors that no later call overwrites.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::InputDevice`] and [`Error::InputDType`] for inputs that do not fit; for a new shape errors
    /// of [`new`](Self::new); and [`Error::OutputsBorrowed`] inside a closure of [`call_zero_copy`](Self::call_zero_copy) that
    /// borrows the outputs of the same shapes.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.call_with(inputs, &|| Ok(inputs.to_vec()))
    }

    /// The same with arguments some of which may be state; a plan is built on the `example`.
    pub(crate) fn call_with(&self, arguments: &[Tensor], example: BuiltOn) -> Result<Vec<Tensor>> {
        self.check(arguments)?;
        if is_nested() {
            return self.eager(arguments);
        }
        let arguments = &*all_placed(arguments)?;
        let key = self.unborrowed_key(arguments)?;
        let replayed = self.replayed(&key, arguments, example, |entry, replay, expected| {
            let outputs = replay.call(arguments)?;
            let outputs = match expected {
                Some(expected) => self.agreed(&key, entry, expected, outputs, arguments)?,
                None => outputs,
            };
            Ok(with_error(entry, arguments, &outputs)?.unwrap_or(outputs))
        })?;
        replayed.map_or_else(|| self.eager(arguments), Ok)
    }

    fn eager(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(self.eager_calls.call(|| (self.function)(inputs))?)
    }

    /// [`call`](Self::call) without copying the outputs: `f` borrows the executor's own output buffers. The next call overwrites
    /// them, so `f` must copy a tensor that is to outlive it ([`Tensor::copy`]).
    ///
    /// On a GPU these buffers are locked while `f` runs: other threads' calls of the same shapes wait until it returns, so it
    /// must not wait for them. `f` may call any other executor, and this one with other shapes. If another thread's closure
    /// borrows the outputs of these shapes, the module runs eagerly instead of waiting, since both closures could wait for each
    /// other. A panic in `f` unwinds to the caller, and later calls work.
    ///
    /// # Errors
    /// Errors of [`call`](Self::call), and [`Error::OutputsBorrowed`] if `f` calls this executor with inputs of the same shapes and
    /// dtypes, in eager mode too, so that it does not depend on what could be captured.
    pub fn call_zero_copy<R>(&self, inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> R) -> Result<R> {
        self.call_zero_copy_with(inputs, &|| Ok(inputs.to_vec()), f)
    }

    /// The same with arguments some of which may be state; a plan is built on the `example`.
    pub(crate) fn call_zero_copy_with<R>(
        &self,
        arguments: &[Tensor],
        example: BuiltOn,
        f: impl FnOnce(&[Tensor]) -> R,
    ) -> Result<R> {
        self.check(arguments)?;
        if is_nested() {
            return Ok(f(&self.eager(arguments)?));
        }
        let arguments = &*all_placed(arguments)?;
        let key = self.unborrowed_key(arguments)?;
        let mut f = Some(|outputs: &[Tensor]| zero_copy::with_borrowed(self.id, &key, || f(outputs)));
        let mut result = None;
        self.replayed(&key, arguments, example, |entry, replay, mut expected| {
            replay.call_zero_copy(arguments, &mut |outputs| {
                let agreed = expected.take().map(|own| self.agreed(&key, entry, own, outputs.to_vec(), arguments));
                let given = f.take().map(|f| {
                    let agreed = agreed.transpose()?;
                    let outputs = agreed.as_deref().unwrap_or(outputs);
                    Ok(f(with_error(entry, arguments, outputs)?.as_deref().unwrap_or(outputs)))
                });
                result = given;
            })
        })?;
        match (result, f) {
            (Some(result), _) => result,
            (None, Some(f)) => Ok(f(&self.eager(arguments)?)),
            (None, None) => unreachable!("the closure's result is kept"),
        }
    }

    /// [`call`](Self::call), with the elements of each output on the host, in f32.
    ///
    /// On a GPU this is for several threads that keep it busy. A thread waits here for its own call alone, and others enqueue theirs
    /// meanwhile. While the driver copies a tensor to memory that is not page-locked, as [`Tensor::to_vec1`] has it do, other threads
    /// enqueue nothing, so that the GPU pauses between calls.
    ///
    /// ```
    /// # use candle::{Device, Tensor};
    /// # use opara_candle::{ops, OparaExecutor};
    /// let x = Tensor::new(&[[1f32, -2.], [-3., 4.]], &Device::Cpu)?;
    /// let fast = OparaExecutor::new(|x: &Tensor| ops::relu(x), &x)?;
    /// assert_eq!(fast.call_to_host(&[x])?, [[1., 0., 0., 4.]]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`call_zero_copy`](Self::call_zero_copy).
    pub fn call_to_host(&self, inputs: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        self.to_host(inputs, None)
    }

    /// The same of each output's first `rows` rows, along its first dimension: a batch that is not full has no answers behind them.
    ///
    /// ```
    /// # use candle::{Device, Tensor};
    /// # use opara_candle::{ops, OparaExecutor};
    /// let x = Tensor::new(&[[1f32, -2.], [-3., 4.]], &Device::Cpu)?;
    /// let fast = OparaExecutor::new(|x: &Tensor| ops::relu(x), &x)?;
    /// assert_eq!(fast.call_to_host_rows(&[x], 1)?, [[1., 0.]]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`call_to_host`](Self::call_to_host), and an output of fewer rows.
    pub fn call_to_host_rows(&self, inputs: &[Tensor], rows: usize) -> Result<Vec<Vec<f32>>> {
        self.to_host(inputs, Some(rows))
    }

    fn to_host(&self, inputs: &[Tensor], rows: Option<usize>) -> Result<Vec<Vec<f32>>> {
        let copies = &self.host_copies;
        let given =
            |outputs: &[Tensor]| outputs.iter().map(|output| copies.begin(output, rows)).collect::<Result<Vec<_>>>();
        let given = self.call_zero_copy(inputs, given)??;
        given.into_iter().map(|given| copies.end(given)).collect()
    }

    /// Forgets everything that was built: the next call of any shape records the module again. Call it after changes of
    /// the module that calls do not see.
    ///
    /// | change of the module | seen by the next call |
    /// |---|---|
    /// | a weight is written in place ([`Var::set`](candle::Var::set), `slice_set`) | yes, unless an operator that depends on no input read it: such operators ran once, see [`Builder::fold_constants`](crate::Builder::fold_constants) |
    /// | a weight is replaced by another tensor | on a GPU if that freed the memory of the first one: the plan is then rebuilt; on the CPU no |
    /// | a setting: a mode, a scale, a position, a flag for training | no |
    ///
    /// [`Builder::recheck`](crate::Builder::recheck) finds unseen changes some calls later.
    ///
    /// Calls in progress finish with the old plans. [`report`](Self::report) stays the same until the example's shapes
    /// are built again. The device memory of all plans is freed.
    ///
    /// ```
    /// use candle::{DType, Device, Module, Tensor, Var};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// let weight = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// let scaled = weight.clone();
    /// let x = Tensor::ones(2, DType::F32, &Device::Cpu)?;
    /// let fast = OparaExecutor::new(move |x: &Tensor| ops::mul(x, &ops::affine(&scaled, 2., 0.)?), &x)?;
    /// weight.set(&Tensor::new(&[5f32, 6.], &Device::Cpu)?)?;
    /// fast.invalidate();
    /// assert_eq!(fast.forward(&x)?.to_vec1::<f32>()?, [10., 12.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate(&self) {
        self.plans.forget();
        let arena = std::mem::take(&mut *self.arena.lock());
        // Outside of the lock.
        drop(arena);
    }

    /// Would a replay miss host code that depends on integers? On a GPU captures refuse reads as well.
    pub(crate) fn depends_on_promise(&self) -> bool {
        self.options.is_pure
    }

    pub(crate) fn check(&self, inputs: &[Tensor]) -> Result<()> {
        let state = &self.options.state;
        if inputs.len() != self.example.len() {
            let (expected, got) = (state.inputs(self.example.len()), state.inputs(inputs.len()));
            return Err(Error::InputCount { expected, got });
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

    /// Shapes and dtypes of these inputs.
    ///
    /// # Errors
    /// [`Error::OutputsBorrowed`] if this thread is inside a closure that borrows the outputs of these shapes.
    pub(crate) fn unborrowed_key(&self, inputs: &[Tensor]) -> Result<Key> {
        let key = key(inputs);
        match zero_copy::is_borrowed(self.id, &key) {
            true => Err(Error::OutputsBorrowed),
            false => Ok(key),
        }
    }

    /// Calls `f` with the replay for inputs of these shapes; `None` if the module has to run instead. If a re-check is due, `f`
    /// also gets the module's own outputs.
    fn replayed<T>(
        &self,
        key: &Key,
        inputs: &[Tensor],
        example: BuiltOn,
        mut f: impl FnMut(&Arc<Entry>, &dyn Replay, Option<Vec<Tensor>>) -> Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.plan(key, example)? else { return Ok(None) };
            let replay = entry.plan.replay.as_ref().filter(|replay| replay.accepts(inputs));
            let Some(replay) = replay else { return Ok(None) };
            // Before the replay, which holds a lock while its outputs are borrowed. On contiguous inputs, like the replay, since
            // matmuls of strided inputs may round differently; and on copies, in case the module writes to its inputs.
            let expected = match entry.is_nth(self.rechecks.every) {
                true => {
                    let copies = self.options.state.copies(inputs)?;
                    Some(self.options.state.answers(self.eager(&copies)?, &copies))
                }
                false => None,
            };
            match f(&entry, &**replay, expected) {
                // The memory was freed after the look-up. The next look-up builds the plan again.
                Err(Error::MemoryFreed) => {}
                // The module's host code may have looked at the result's shape.
                Err(error @ Error::OtherResult { .. }) => {
                    self.plans.distrust(key, &entry, error.to_string());
                    // A state may be partly updated.
                    return if self.options.state.is_empty() { Ok(None) } else { Err(error) };
                }
                // A closure of another thread borrows the outputs.
                Err(Error::OutputsBorrowed) => return Ok(None),
                result => return result.map(Some),
            }
        }
        Ok(None)
    }

    /// Compares outputs and state of a replay with the module's, `expected`. If they differ, these shapes run eagerly from now
    /// on, and the module's outputs and state are used.
    fn agreed(
        &self,
        key: &Key,
        entry: &Arc<Entry>,
        expected: Vec<Tensor>,
        outputs: Vec<Tensor>,
        arguments: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let state = &self.options.state;
        let count = outputs.len();
        let mut answers = state.answers(outputs, arguments);
        let of_state = answers.len() - count;
        let compared = self.rechecks.compare(&expected, &answers);
        if let Err(Error::Mismatch(mismatch)) = &compared {
            self.plans.distrust(key, entry, format!("a re-check failed: {}", mismatch.difference()));
        }
        if compared.is_err() {
            state.store(&expected, arguments)?;
            answers = expected;
        }
        answers.truncate(answers.len().saturating_sub(of_state));
        Ok(answers)
    }

    /// The plan for these shapes, which is built if there is none. `None` if there is none and another plan of this executor is
    /// being built.
    pub(crate) fn plan(&self, key: &Key, example: BuiltOn) -> Result<Option<Arc<Entry>>> {
        if let Some(entry) = self.plans.find(key) {
            return Ok(Some(entry));
        }
        let Some(_building) = self.building.try_lock() else { return Ok(None) };
        if let Some(entry) = self.plans.find(key) {
            return Ok(Some(entry));
        }
        let generation = self.plans.generation();
        // Without the graph that candle keeps for gradients.
        let example: Vec<Tensor> = all_placed(&example()?)?.iter().map(Tensor::detach).collect();
        let plan = self.build(&example).map_err(|error| self.blame_dtype(error, key))?;
        Ok(Some(self.plans.insert(key.clone(), plan, generation)))
    }

    fn build(&self, inputs: &[Tensor]) -> Result<Plan> {
        if Environment::get().is_off {
            return Ok(pipeline::eager(&Error::SwitchedOff, inputs, &self.options));
        }
        let (arena, before) = (self.arena.lock().clone(), self.eager_calls.now());
        let mut built = Err(Error::MemoryFreed);
        for _ in 0..ATTEMPTS {
            built = pipeline::build(&self.function, inputs, &self.options, &arena);
            if !matches!(built, Err(Error::MemoryFreed)) {
                break;
            }
        }
        match built {
            // Other calls may have replaced a table that the module keeps for the latest shapes.
            Err(Error::Stateful { reason, .. }) if self.eager_calls.has_run_since(before) => {
                let reason = format!("other calls ran the module while it was recorded: {reason}");
                self.eagerly(Error::NotCapturable { reason }, inputs)
            }
            Err(Error::MemoryFreed) => self.eagerly(Error::MemoryFreed, inputs),
            built => built,
        }
    }

    /// A plan that runs the module for this reason, unless that is to be an error.
    fn eagerly(&self, reason: Error, inputs: &[Tensor]) -> Result<Plan> {
        match self.options.on_uncapturable {
            OnUncapturable::Eager => Ok(pipeline::eager(&reason, inputs, &self.options)),
            OnUncapturable::Error => Err(reason),
        }
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

/// A replay's outputs in whose place a backward pass fails, if candle tracks an input or the module has variables.
fn with_error(entry: &Entry, arguments: &[Tensor], outputs: &[Tensor]) -> candle::Result<Option<Vec<Tensor>>> {
    let Some(variable) = entry.plan.variable.clone().or_else(|| gradient::variable(arguments)) else { return Ok(None) };
    let tracked = ("OparaExecutor", variable);
    outputs
        .iter()
        .map(|output| gradient::with_error(&tracked, output.detach()))
        .collect::<candle::Result<_>>()
        .map(Some)
}

/// For functions of one tensor to one tensor.
///
/// # Errors
/// As for [`OparaExecutor::call`], and [`Error::NotOneOutput`], to which `opara_candle::Error::from` converts candle's
/// error.
impl Module for OparaExecutor {
    fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        let outputs = self.call(std::slice::from_ref(x))?;
        let [output] = <[Tensor; 1]>::try_from(outputs).map_err(|all| Error::NotOneOutput { got: all.len() })?;
        Ok(output)
    }
}

impl std::fmt::Debug for OparaExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OparaExecutor").field("options", &self.options).finish_non_exhaustive()
    }
}
