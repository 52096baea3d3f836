//! `OparaExecutor`: wraps a module, keeps its type, answers faster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use candle::{DType, DeviceLocation, Module, Tensor};
use parking_lot::Mutex;

use crate::backend::{Function, Replay};
use crate::environment::Environment;
use crate::error::difference;
use crate::options::{OnUncapturable, Options};
use crate::pipeline::{self, Plan};
use crate::plans::{Entry, Plans};
use crate::recheck::Rechecks;
use crate::reentrancy::is_nested;
use crate::shapes::{key, Key};
use crate::{cuda, zero_copy, Error, Result};

/// How often a plan whose memory the module freed is built anew for one call, before the module answers it.
const ATTEMPTS: usize = 4;

/// A module whose forward pass is recorded once for each shape of input, scheduled on parallel streams, and replayed.
///
/// On CUDA a replay is one launch of one graph; on the CPU it runs on worker threads. What cannot be captured runs as
/// before, and [`report`](Self::report) says why.
///
/// The module must compute its outputs from its inputs and its weights alone, by the same operators at every call.
/// Weights are constants: call [`invalidate`](Self::invalidate) after changing them.
///
/// Threads may share an executor. Plans of one executor are built one at a time, and calls of new shapes wait for that;
/// calls of shapes that are built already do not. While a plan is built the module runs, so it must not wait for a thread
/// that calls the same executor with new shapes. Nothing else of an executor is locked while the module runs.
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
    /// Held while a plan is built: a shape is built once, and builds do not see what others do to the module.
    building: Mutex<()>,
    pub(crate) rechecks: Rechecks,
    /// Device memory that all plans share.
    arena: Mutex<Arc<cuda::Arena>>,
}

impl OparaExecutor {
    /// Builds for inputs like these.
    pub(crate) fn wrap(options: Options, function: Function, inputs: &[Tensor]) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let options = options.under(Environment::get());
        let executor = Self {
            function,
            example: inputs.iter().map(|t| (t.device().location(), t.dtype())).collect(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            plans: Plans::new(options.max_shapes, key(inputs)),
            building: Mutex::new(()),
            rechecks: Rechecks::new(options.recheck),
            arena: Default::default(),
            options,
        };
        executor.check(inputs)?;
        executor.plan(&key(inputs), inputs)?;
        Ok(executor)
    }

    /// Replays the module, and returns new output tensors that no later call overwrites.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::InputDevice`] and [`Error::InputDType`] for inputs that do not fit; for a new
    /// shape those of [`new`](Self::new); and [`Error::OutputsBorrowed`] inside a closure of [`call_zero_copy`](Self::call_zero_copy) that borrows the
    /// outputs of the same shapes.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.check(inputs)?;
        if is_nested() {
            return Ok((self.function)(inputs)?);
        }
        let key = self.unborrowed_key(inputs)?;
        let replayed = self.replayed(&key, inputs, |entry, replay, expected| {
            let outputs = replay.call(inputs)?;
            Ok(match expected {
                Some(expected) if !self.agree(&key, entry, &expected, &outputs) => expected,
                _ => outputs,
            })
        })?;
        replayed.map_or_else(|| self.eager(inputs), Ok)
    }

    fn eager(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok((self.function)(inputs)?)
    }

    /// [`call`](Self::call) without copying the outputs: `f` borrows the executor's own output buffers. The next call overwrites
    /// them, so `f` must copy a tensor that is to outlive it ([`Tensor::copy`]).
    ///
    /// On a GPU these buffers are locked while `f` runs: other threads' calls of the same shapes wait until it returns, so it
    /// must not wait for them. `f` may call any other executor, and this one with other shapes. If another thread's closure
    /// borrows the outputs of those shapes, the module runs eagerly instead of waiting, since both closures could wait for each
    /// other. A panic in `f` unwinds to the caller, and later calls work.
    ///
    /// # Errors
    /// Those of [`call`](Self::call), and [`Error::OutputsBorrowed`] if `f` calls this executor with inputs of the same shapes and
    /// dtypes, in eager mode too, so that it does not depend on what could be captured.
    pub fn call_zero_copy<R>(&self, inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> R) -> Result<R> {
        self.check(inputs)?;
        if is_nested() {
            return Ok(f(&(self.function)(inputs)?));
        }
        let key = self.unborrowed_key(inputs)?;
        let mut f = Some(|outputs: &[Tensor]| zero_copy::with_borrowed(self.id, &key, || f(outputs)));
        let mut result = None;
        self.replayed(&key, inputs, |entry, replay, expected| {
            replay.call_zero_copy(inputs, &mut |outputs| {
                let outputs = match &expected {
                    Some(expected) if !self.agree(&key, entry, expected, outputs) => expected,
                    _ => outputs,
                };
                result = f.take().map(|f| f(outputs));
            })
        })?;
        match (result, f) {
            (Some(result), _) => Ok(result),
            (None, Some(f)) => Ok(f(&self.eager(inputs)?)),
            (None, None) => unreachable!("the closure's result is kept"),
        }
    }

    /// Forgets everything that was built: the next call of any shape records the module anew. For changes of the module
    /// that calls do not see.
    ///
    /// | change of the module | seen by the next call |
    /// |---|---|
    /// | a weight is written in place ([`Var::set`](candle::Var::set), `slice_set`) | yes, unless an operator that depends on no input read it: such operators ran once, see [`Builder::fold_constants`](crate::Builder::fold_constants) |
    /// | a weight is replaced by another tensor | on a GPU if that freed the memory of the first one, which has the plan built anew; on the CPU no |
    /// | a setting: a mode, a scale, a position, a flag for training | no |
    ///
    /// What is not seen is what [`Builder::recheck`](crate::Builder::recheck) finds some calls later.
    ///
    /// Calls that are under way finish with what there was. [`report`](Self::report) stays as it is until the example's
    /// shapes are built anew. Device memory of all plans is given back.
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

    pub(crate) fn check(&self, inputs: &[Tensor]) -> Result<()> {
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

    /// What `f` makes of the replay for inputs of these shapes; `None` if the module is to answer. Where a re-check is due,
    /// `f` gets the module's own outputs, too.
    fn replayed<T>(
        &self,
        key: &Key,
        inputs: &[Tensor],
        mut f: impl FnMut(&Arc<Entry>, &dyn Replay, Option<Vec<Tensor>>) -> Result<T>,
    ) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let entry = self.plan(key, inputs)?;
            let replay = entry.plan.replay.as_ref().filter(|replay| replay.accepts(inputs));
            let Some(replay) = replay else { return Ok(None) };
            // Before the replay, which holds a lock while its outputs are borrowed. On contiguous inputs, like the replay, since
            // matmuls of strided inputs may round differently; and on copies, in case the module writes to its inputs.
            let expected = match entry.is_nth(self.rechecks.every) {
                true => {
                    let copies = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<Vec<_>>>()?;
                    Some(self.eager(&copies)?)
                }
                false => None,
            };
            match f(&entry, &**replay, expected) {
                // Since it was looked up: the next look-up builds it anew.
                Err(Error::MemoryFreed) => {}
                // To a closure of another thread.
                Err(Error::OutputsBorrowed) => return Ok(None),
                result => return result.map(Some),
            }
        }
        Ok(None)
    }

    /// Whether a replay's outputs are those of the module. If not, its shapes run eagerly from now on.
    fn agree(&self, key: &Key, entry: &Arc<Entry>, expected: &[Tensor], outputs: &[Tensor]) -> bool {
        let compared = self.rechecks.compare(expected, outputs);
        if let Err(error @ Error::Mismatch { .. }) = &compared {
            self.plans.distrust(key, entry, format!("a re-check failed: {}", difference(error)));
        }
        compared.is_ok()
    }

    pub(crate) fn plan(&self, key: &Key, inputs: &[Tensor]) -> Result<Arc<Entry>> {
        if let Some(entry) = self.plans.find(key) {
            return Ok(entry);
        }
        let _building = self.building.lock();
        if let Some(entry) = self.plans.find(key) {
            return Ok(entry);
        }
        let generation = self.plans.generation();
        let plan = self.build(inputs).map_err(|error| self.blame_dtype(error, key))?;
        Ok(self.plans.insert(key.clone(), plan, generation))
    }

    fn build(&self, inputs: &[Tensor]) -> Result<Plan> {
        if Environment::get().is_off {
            return Ok(pipeline::eager(&Error::SwitchedOff, inputs, &self.options));
        }
        let arena = self.arena.lock().clone();
        for _ in 0..ATTEMPTS {
            match pipeline::build(&self.function, inputs, &self.options, &arena) {
                Err(Error::MemoryFreed) => {}
                built => return built,
            }
        }
        match self.options.on_uncapturable {
            OnUncapturable::Eager => Ok(pipeline::eager(&Error::MemoryFreed, inputs, &self.options)),
            OnUncapturable::Error => Err(Error::MemoryFreed),
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

/// For functions of one tensor to one tensor.
///
/// # Errors
/// As for [`OparaExecutor::call`], and [`Error::NotOneOutput`], which `opara_candle::Error::from` makes of candle's error.
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
