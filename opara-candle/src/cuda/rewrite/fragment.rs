//! A graph of values as captured launches.

use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::{Graph, Input};

use crate::arguments::{copy, Rerun, StateArguments};
use crate::backend::Function;
use crate::cuda::capture::{capture, Capture};
use crate::cuda::driver::CapturedWork;
use crate::cuda::target::Target;
use crate::rewrite::evaluate::{evaluate, Arithmetic, Numbers};
use crate::trace::Role;
use crate::{Error, Result};

/// Captures the launches that compute a graph of inputs like these, twice: words that only look like pointers differ.
///
/// # Errors
/// [`Error::NotCapturable`] with the reason, and those of the driver.
pub(super) fn fragment(target: &Target, graph: &Graph, inputs: &[Tensor]) -> Result<Capture> {
    const ATTEMPTS: usize = 4;
    let of = graph.clone();
    let function: Function = Arc::new(move |inputs| evaluate(&of, inputs, Arithmetic::Typed, Numbers::All));
    // Operators keep no tensors of a pass, so nothing has to run.
    let pool = || target.stream.capture_pool(CapturedWork::IsRecorded);
    let pools = [pool()?, pool()?];
    // A run keeps no state: all of its arguments are inputs.
    let stateless = StateArguments::default();
    let pass = |number: usize, on: &Rerun| {
        capture(&target.stream, &target.device, &pools[number % 2], &function, on, inputs.len())
    };
    // Nothing runs, so nothing is written. Weights may take gigabytes; their second copies lie elsewhere than these.
    let of_first = |(of, input): (&Input, &Tensor)| if of.is_constant { Ok(input.clone()) } else { copy(input) };
    let first = graph.inputs.iter().zip(inputs).map(of_first).collect::<candle::Result<Vec<_>>>()?;
    let mut earlier = pass(0, &Rerun::new(&stateless, &first)?)?;
    let mut moved = Vec::new();
    loop {
        let elsewhere = stateless.copies(inputs)?;
        let mut again = pass(moved.len() + 1, &Rerun::new(&stateless, &elsewhere)?)?;
        moved.push(elsewhere);
        match again.confirm(&earlier)? {
            None => return sound(again),
            Some(at) if moved.len() == ATTEMPTS => return Err(again.unstable(at)),
            Some(_) => earlier = again,
        }
    }
}

/// A capture whose every pointer leads to its own buffers or to a library's.
fn sound(capture: Capture) -> Result<Capture> {
    let is_written =
        |id| capture.trace.ops.iter().flat_map(|op| &op.accesses).any(|a| a.buffer == id && a.mode.writes());
    let inputs = capture.trace.buffers.iter().enumerate().filter(|(_, buffer)| matches!(buffer.role, Role::Input(_)));
    match inputs.map(|(id, _)| id).find(|&id| is_written(id)) {
        Some(_) => Err(Error::NotCapturable { reason: "its operators write to what they are given".into() }),
        None => Ok(capture),
    }
}
