//! Eager execution while an executor is built: it loads kernels, fills the libraries' caches, and gives the outputs that
//! replays are compared with.

use candle::Tensor;

use super::driver::{address_of, WrittenMemory};
use super::kernels;
use super::sample::sample;
use super::target::Target;
use crate::arguments::StateArguments;
use crate::backend::{Example, Function};
use crate::examples::{Examples, Other};
use crate::timing::wall_us;
use crate::{verify, Error, Mismatch, Result};

/// Runs a module eagerly, each time in its state from before building.
pub(super) struct Eager<'a> {
    function: &'a Function,
    target: &'a Target,
    /// The state among the function's arguments.
    arguments: &'a StateArguments,
    /// Device memory of the module that passes write to.
    state: WrittenMemory,
    /// Microseconds for which the device still computed when calls had returned.
    pub unfinished_us: f64,
}

/// The results of eager calls.
pub(super) struct Answers {
    /// The first example holds the inputs themselves.
    pub examples: Vec<Example>,
    /// The error if the module accepts the inputs but fails on other values in their place.
    pub refused: Option<Error>,
    /// Did a second call with the inputs give the same bits? An error if not.
    pub repeats: Result<()>,
}

impl<'a> Eager<'a> {
    /// Nothing has run yet.
    pub fn new(function: &'a Function, target: &'a Target, arguments: &'a StateArguments) -> Self {
        let state = WrittenMemory::new(&target.stream, kernels::written_by);
        Self { function, target, arguments, state, unfinished_us: 0. }
    }

    /// Calls the module with the inputs, with further examples, and with the inputs again.
    ///
    /// # Errors
    /// The module's own, with the inputs or with an example that was given.
    pub fn answers(&mut self, inputs: &[Tensor], further: &Examples) -> Result<Answers> {
        let (outputs, us) = self.pass(inputs)?;
        // The pass that is captured copies these at its end: load the kernel for that, too.
        for output in outputs.iter().filter(|o| !o.is_contiguous()) {
            output.force_contiguous()?;
        }
        let mut examples = vec![Example::new(inputs.to_vec(), &outputs, us)];
        drop(outputs);
        let mut refused = None;
        for Other { inputs, given } in further.others(inputs)? {
            let inputs = contiguous(&inputs)?;
            match self.pass(&inputs) {
                Ok((outputs, us)) => {
                    examples.push(Example { is_given: given, ..Example::new(inputs, &outputs, us) });
                }
                Err(error @ (Error::Candle(_) | Error::Panicked { .. })) if !given => {
                    refused = Some(Error::FailsOnOtherValues { source: error.into() })
                }
                Err(error) => return Err(error),
            }
        }
        // Last, so that state left behind by the other calls shows.
        let unfinished_us = self.unfinished_us;
        let (again, us) = self.pass(inputs)?;
        examples[0].eager_us = examples[0].eager_us.min(us);
        examples[0].is_device_behind = self.unfinished_us - unfinished_us > us / 10.;
        let repeats = same_again(&examples[0].outputs, &again);
        Ok(Answers { examples, refused, repeats })
    }

    /// Calls the module once more and compares the bits with an earlier call on the same inputs.
    ///
    /// # Errors
    /// The module's own.
    pub fn repeats(&mut self, earlier: &Example) -> Result<Result<()>> {
        let (again, _) = self.pass(&earlier.inputs)?;
        Ok(same_again(&earlier.outputs, &again))
    }

    /// The state among the function's arguments.
    pub fn arguments(&self) -> &'a StateArguments {
        self.arguments
    }

    /// Runs a pass that captures the module on these arguments. It leaves the module's state as it was, too.
    ///
    /// # Errors
    /// Errors of `pass`, and of putting the state back.
    pub fn capture<T>(&mut self, on: &[Tensor], pass: impl FnOnce() -> Result<T>) -> Result<T> {
        let captured = self.state.watch(&self.own(on)?, pass);
        self.state.restore()?;
        captured?
    }

    /// Waits until the device has finished the module's calls: a pass that is captured runs, too.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(&mut self) -> Result<()> {
        let (finished, us) = wall_us(|| self.target.stream.synchronize());
        self.unfinished_us += us;
        finished
    }

    /// The module's state from before building.
    pub fn into_state(self) -> WrittenMemory {
        self.state
    }

    /// The results of one call, and the microseconds that it took.
    fn pass(&mut self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, f64)> {
        // A module may write to its arguments.
        let inputs = self.arguments.copies(inputs)?;
        let own = self.own(&inputs)?;
        let Self { function, target, state, .. } = self;
        let mut outputs = Vec::new();
        let forward = || {
            outputs = function(&inputs)?;
            Ok(())
        };
        let eager = sample(&target.device, || state.watch(&own, forward)?);
        state.restore()?;
        let eager = eager?;
        self.unfinished_us += eager.wall_us - eager.host_us;
        Ok((self.arguments.answers(outputs, &inputs), eager.gpu_us))
    }

    /// Addresses of the state among the arguments. Writes to them are not writes to the module's own state.
    fn own(&self, arguments: &[Tensor]) -> Result<Vec<u64>> {
        let (_, state) = self.arguments.split(arguments);
        state.iter().filter(|tensor| tensor.elem_count() > 0).map(address_of).collect()
    }
}

/// A replay reads contiguous inputs. Matmuls of strided inputs may round differently.
pub(super) fn contiguous(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(inputs.iter().map(Tensor::contiguous).collect::<candle::Result<_>>()?)
}

/// Checks that two calls with the same inputs gave the same bits. Among them may be a state of gigabytes.
fn same_again(expected: &[Tensor], got: &[Tensor]) -> Result<()> {
    verify::same_bits_by_device("second call", expected, got).map_err(|error| match error {
        Error::Mismatch(Mismatch { output, differing, elements, .. }) => Error::stateful(format!(
            "two calls with the same inputs give other outputs: output {output} differs in {differing} of {elements} elements. \
             Or it is not deterministic"
        )),
        error => error,
    })
}
