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
use crate::{verify, Error, Result};

/// Runs a module eagerly, each time in its state from before building.
pub(super) struct Eager<'a> {
    function: &'a Function,
    target: &'a Target,
    /// Which of the function's arguments are state.
    arguments: &'a StateArguments,
    /// What the module keeps on the device by itself.
    state: WrittenMemory,
}

/// What a module answers.
pub(super) struct Answers {
    /// The first one is that of the inputs.
    pub examples: Vec<Example>,
    /// That it takes the inputs, and not other values in their place.
    pub refused: Option<Error>,
    /// Whether a second call with the inputs gave the same bits.
    pub repeats: Result<()>,
}

impl<'a> Eager<'a> {
    /// Nothing has run yet.
    pub fn new(function: &'a Function, target: &'a Target, arguments: &'a StateArguments) -> Self {
        Self { function, target, arguments, state: WrittenMemory::new(&target.stream, kernels::written_by) }
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
                Ok((outputs, us)) => examples.push(Example::new(inputs, &outputs, us)),
                Err(error @ (Error::Candle(_) | Error::Panicked { .. })) if !given => {
                    refused = Some(Error::FailsOnOtherValues { source: error.into() })
                }
                Err(error) => return Err(error),
            }
        }
        // After all others, so that what they left behind shows.
        let (again, us) = self.pass(inputs)?;
        examples[0].eager_us = examples[0].eager_us.min(us);
        let repeats = same_again(&examples[0].outputs, &again);
        Ok(Answers { examples, refused, repeats })
    }

    /// Calls the module once more: whether it gives the bits of an earlier call with the same inputs.
    ///
    /// # Errors
    /// The module's own.
    pub fn repeats(&mut self, earlier: &Example) -> Result<Result<()>> {
        let (again, _) = self.pass(&earlier.inputs)?;
        Ok(same_again(&earlier.outputs, &again))
    }

    /// Which of the function's arguments are state.
    pub fn arguments(&self) -> &'a StateArguments {
        self.arguments
    }

    /// Runs a pass that captures the module on these arguments. It leaves the module's state as it was, too.
    ///
    /// # Errors
    /// Those of `pass`, and of putting the state back.
    pub fn capture<T>(&mut self, on: &[Tensor], pass: impl FnOnce() -> Result<T>) -> Result<T> {
        let captured = self.state.watch(&self.own(on)?, pass);
        self.state.restore()?;
        captured?
    }

    /// The module's state from before building.
    pub fn into_state(self) -> WrittenMemory {
        self.state
    }

    /// All that a call answers, and the microseconds that it took.
    fn pass(&mut self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, f64)> {
        // A module may write to what it is called with.
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
        Ok((self.arguments.answers(outputs, &inputs), eager.gpu_us))
    }

    /// Addresses of the state among the arguments: what a pass writes there is no state of the module's own.
    fn own(&self, arguments: &[Tensor]) -> Result<Vec<u64>> {
        let (_, state) = self.arguments.split(arguments);
        state.iter().filter(|tensor| tensor.elem_count() > 0).map(address_of).collect()
    }
}

/// A replay reads contiguous inputs, and matmuls of others may round otherwise.
pub(super) fn contiguous(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(inputs.iter().map(Tensor::contiguous).collect::<candle::Result<_>>()?)
}

/// Checks that two calls with the same inputs gave the same bits.
fn same_again(expected: &[Tensor], got: &[Tensor]) -> Result<()> {
    verify::same_bits("second call", expected, got).map_err(|error| match error {
        Error::Mismatch { output, differing, elements, .. } => Error::stateful(format!(
            "two calls with the same inputs give other outputs: output {output} differs in {differing} of {elements} elements. \
             Or it is not deterministic"
        )),
        error => error,
    })
}
