//! A graph of values as captured launches.

use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::Graph;

use crate::arguments::{Rerun, StateArguments};
use crate::backend::Function;
use crate::cuda::capture::{capture, Capture};
use crate::cuda::driver::CapturePool;
use crate::cuda::target::Target;
use crate::fault::Fault;
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
    let pools = [CapturePool::take(&target.stream)?, CapturePool::take(&target.stream)?];
    // A run keeps no state: all of its arguments are inputs.
    let stateless = StateArguments::default();
    let pass = |number: usize, on: &Rerun| {
        capture(&target.stream, &target.device, &pools[number % 2], &function, on, inputs.len())
    };
    let first = Rerun::of_copies(&stateless, inputs)?;
    let mut earlier = pass(0, &first)?;
    let mut moved = Vec::new();
    loop {
        let elsewhere = Rerun::of_copies(&stateless, inputs)?;
        let mut again = pass(moved.len() + 1, &elsewhere)?;
        moved.push(elsewhere);
        match again.confirm(&earlier)? {
            None => return sound(again),
            Some(at) if moved.len() == ATTEMPTS => return Err(again.unstable(at)),
            Some(_) => earlier = again,
        }
    }
}

/// Whether the device had no memory for a fragment. A later build may have it.
pub(super) fn lacks_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::FailsInCapture { source } => Fault::of(source) == Some(Fault::OutOfMemory),
        _ => false,
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

#[cfg(test)]
mod tests {
    use candle::cuda_backend::{CudaError, WrapErr};
    use cudarc::driver::sys::CUresult;
    use cudarc::driver::DriverError;

    use super::*;

    #[test]
    fn a_lack_of_memory_is_told_from_what_fails_again() {
        let of = |status| {
            let failed: std::result::Result<(), CudaError> = Err(DriverError(status).into());
            failed.w().expect_err("it is an error")
        };
        let in_capture = |status| Error::FailsInCapture { source: Error::from(of(status)).into() };
        assert!(lacks_memory(&Error::from(of(CUresult::CUDA_ERROR_OUT_OF_MEMORY))));
        assert!(lacks_memory(&in_capture(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
        assert!(!lacks_memory(&in_capture(CUresult::CUDA_ERROR_INVALID_VALUE)));
        assert!(!lacks_memory(&Error::NotCapturable { reason: "it writes to its inputs".into() }));
    }
}
