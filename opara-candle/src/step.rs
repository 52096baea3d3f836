//! `StepExecutor`: replays a function that reads a state and writes it in place.

use std::marker::PhantomData;
use std::sync::Arc;

use candle::{DType, DeviceLocation, Shape, Tensor};

use crate::arguments::{copy, share_memory, StateArguments};
use crate::backend::Function;
use crate::builder::Builder;
use crate::cpu::record::apply;
use crate::executor::OparaExecutor;
use crate::panics::caught;
use crate::report::Report;
use crate::state::{check_alike, StepState};
use crate::trace::Trace;
use crate::{cuda, Result, StateError};

/// A step that is recorded once for each shape of its inputs, and replayed on any state of the shapes that it was built for.
///
/// Made by [`Builder::build_step`]. Several threads may step different states with one executor; the exclusive borrow prevents
/// two steps of the same state at a time. A thread that reads clones of a state's tensors while a step runs may see its writes.
pub struct StepExecutor<S> {
    executor: OparaExecutor,
    /// Shape and dtype of each tensor of the state.
    state: Vec<(Shape, DType)>,
    location: DeviceLocation,
    of: PhantomData<fn(&S)>,
}

impl Builder {
    /// Wraps a step: a function of several tensors and a state to several tensors. It updates the state by operators
    /// that write in place: [`ops::assign`](crate::ops::assign), [`ops::advance`](crate::ops::advance),
    /// [`ops::write_rows`](crate::ops::write_rows), on a GPU also candle's `slice_set`. `inputs` (may be empty) and
    /// `state` are examples, all on one device.
    ///
    /// Building runs the step on copies ([`StepState::scratch`]) and never changes `state`. Outputs and state of replays
    /// are compared with eager execution. The step must use the state that it is given: tensors that the function
    /// captured itself stay the same at every call. An output that is a view of the state is copied when the step ends.
    ///
    /// On the CPU, host code could read values of the state, such as a position, and a replay would not repeat that. So the step
    /// is also recorded on the state after its first run, and both recordings must agree.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// // A running sum.
    /// let step = |x: &[Tensor], sum: &Tensor| {
    ///     ops::assign(sum, &ops::add(sum, &x[0])?)?;
    ///     Ok(vec![sum.clone()])
    /// };
    /// let x = [Tensor::new(&[1f32, 2.], &Device::Cpu)?];
    /// let mut sum = Tensor::zeros(2, DType::F32, &Device::Cpu)?;
    /// let step = OparaExecutor::builder().build_step(step, &x, &sum)?;
    /// assert_eq!(sum.to_vec1::<f32>()?, [0., 0.]); // Building left it alone.
    /// step.step(&x, &mut sum)?;
    /// let outputs = step.step(&x, &mut sum)?;
    /// assert_eq!(sum.to_vec1::<f32>()?, [2., 4.]);
    /// assert_eq!(outputs[0].to_vec1::<f32>()?, [2., 4.]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) for a state that cannot be stepped, and errors of
    /// [`OparaExecutor::new`].
    pub fn build_step<S, F>(mut self, step: F, inputs: &[Tensor], state: &S) -> Result<StepExecutor<S>>
    where
        S: StepState + Send + Sync + 'static,
        F: Fn(&[Tensor], &S) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        self.check_examples(inputs)?;
        let (tensors, scratch) = (state.tensors(), state.scratch()?.tensors());
        let location = inputs.iter().chain(&tensors).next().map_or(DeviceLocation::Cpu, |t| t.device().location());
        let specs: Vec<_> = tensors.iter().map(|t| (t.shape().clone(), t.dtype())).collect();
        check(&specs, location, inputs, &tensors)?;
        check(&specs, location, inputs, &scratch)?;
        let arguments = StateArguments::new(&tensors, &scratch);
        let function = of_arguments(step, state.with(without_memory(&tensors)?), arguments.clone());
        self.0.state = arguments;
        let executor = OparaExecutor::wrap(self.0, function, &joined(inputs, scratch))?;
        Ok(StepExecutor { executor: executor.warned(), state: specs, location, of: PhantomData })
    }
}

impl<S: StepState> StepExecutor<S> {
    /// Runs one step, which updates `state`. No later step overwrites the outputs.
    ///
    /// After an error of the device or of the step itself, the state may be partly updated: restore a
    /// [`Snapshot`](crate::Snapshot).
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) for a state that this step cannot run on, which stays unchanged; and errors
    /// of [`OparaExecutor::call`].
    pub fn step(&self, inputs: &[Tensor], state: &mut S) -> Result<Vec<Tensor>> {
        self.executor.call_with(&self.arguments(inputs, state)?, &|| example(inputs, state))
    }

    /// Like [`step`](Self::step), but `f` borrows the outputs without a copy: the next step overwrites them. The rules
    /// of [`OparaExecutor::call_zero_copy`] apply.
    ///
    /// # Errors
    /// Errors of [`step`](Self::step) and of [`OparaExecutor::call_zero_copy`].
    pub fn call_zero_copy<R>(&self, inputs: &[Tensor], state: &mut S, f: impl FnOnce(&[Tensor]) -> R) -> Result<R> {
        self.executor.call_zero_copy_with(&self.arguments(inputs, state)?, &|| example(inputs, state), f)
    }

    /// The report of the plan for inputs of the example's shapes.
    pub fn report(&self) -> Report {
        self.executor.report()
    }

    /// The trace that is replayed for inputs and a state like these: [`OparaExecutor::trace`].
    ///
    /// # Errors
    /// Errors of [`OparaExecutor::trace`] and of [`step`](Self::step).
    pub fn trace(&self, inputs: &[Tensor], state: &S) -> Result<Trace> {
        self.executor.trace_with(&self.arguments(inputs, state)?, &|| example(inputs, state))
    }

    /// Drops all plans: [`OparaExecutor::invalidate`].
    pub fn invalidate(&self) {
        self.executor.invalidate();
    }

    /// Inputs and state as the arguments of one call.
    fn arguments(&self, inputs: &[Tensor], state: &S) -> Result<Vec<Tensor>> {
        let tensors = state.tensors();
        check(&self.state, self.location, inputs, &tensors)?;
        Ok(joined(inputs, tensors))
    }
}

impl<S> std::fmt::Debug for StepExecutor<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepExecutor").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Arguments to build a plan on: the inputs, and a scratch copy of the state.
fn example(inputs: &[Tensor], state: &impl StepState) -> Result<Vec<Tensor>> {
    Ok(joined(inputs, state.scratch()?.tensors()))
}

fn joined(inputs: &[Tensor], state: Vec<Tensor>) -> Vec<Tensor> {
    inputs.iter().cloned().chain(state).collect()
}

/// Wraps the step as a function of one list of tensors.
fn of_arguments<S, F>(step: F, like: S, state: StateArguments) -> Function
where
    S: StepState + Send + Sync + 'static,
    F: Fn(&[Tensor], &S) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let run = move |arguments: &[Tensor]| -> candle::Result<Vec<Tensor>> {
        let (inputs, state) = state.split(arguments);
        let outputs = step(inputs, &like.with(state.to_vec()))?;
        // Outputs are copied out of the state, since the next step writes to it.
        let own = |output: Tensor| match state.iter().any(|tensor| share_memory(tensor, &output)) {
            true => apply("copy", &[&output], 0, |t| copy(t[0])),
            false => Ok(output),
        };
        outputs.into_iter().map(own).collect()
    };
    Arc::new(move |arguments| Ok(caught(|| Ok(run(arguments)?))?))
}

/// Tensors of the same shapes and dtypes that are views of one element, and so take no memory.
fn without_memory(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let like = |t: &Tensor| Tensor::zeros((), t.dtype(), t.device())?.broadcast_as(t.shape());
    Ok(tensors.iter().map(like).collect::<candle::Result<_>>()?)
}

/// Checks that a state can be stepped.
fn check(specs: &[(Shape, DType)], location: DeviceLocation, inputs: &[Tensor], state: &[Tensor]) -> Result<()> {
    if state.len() != specs.len() {
        return Err(StateError::Count { expected: specs.len(), got: state.len() }.into());
    }
    for (index, (tensor, (shape, dtype))) in state.iter().zip(specs).enumerate() {
        check_alike(index, (shape, *dtype), tensor)?;
        let got = tensor.device().location();
        if got != location {
            return Err(StateError::Device { index, expected: location, got }.into());
        }
        let layout = |reason| Err(StateError::Layout { index, reason }.into());
        if !tensor.is_contiguous() {
            return layout("is not contiguous");
        }
        if tensor.device().is_cuda() && !cuda::is_aligned(tensor)? {
            return layout("does not begin at a multiple of 256 bytes");
        }
        let shares = |other: &Tensor| tensor.elem_count() > 0 && share_memory(tensor, other);
        if let Some(other) = state[..index].iter().position(shares) {
            return Err(StateError::Shared { index, other: format!("its tensor {other}") }.into());
        }
        if let Some(other) = inputs.iter().position(shares) {
            return Err(StateError::Shared { index, other: format!("input {other}: pass a copy") }.into());
        }
    }
    Ok(())
}
