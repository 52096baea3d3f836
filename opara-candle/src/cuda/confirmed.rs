//! Captures a module until two captures agree; a difference shows state on the host.

use candle::Tensor;

use super::capture::{capture, Capture};
use super::driver::{CapturedWork, WatchedMemory};
use super::eager::Eager;
use super::target::Target;
use crate::arguments::Rerun;
use crate::backend::Function;
use crate::{Error, Result};

/// A capture that another one agrees with.
pub(super) struct Confirmed {
    pub capture: Capture,
    /// The module's memory that it uses, watched since the capture began.
    pub external: WatchedMemory,
}

/// Captures a module until two captures in a row agree.
///
/// # Errors
/// [`Error::Stateful`] or [`Error::Unstable`] if no two captures in a row agree, and errors of [`capture`].
pub(super) fn confirmed(
    target: &Target,
    function: &Function,
    inputs: &[Tensor],
    eager: &mut Eager,
) -> Result<Confirmed> {
    const ATTEMPTS: usize = 4;
    let Target { device, stream } = target;
    let arguments = eager.arguments();
    let first = Rerun::of_copies(arguments, inputs)?;
    stream.wait_for_all()?;
    // At other addresses each time: pointers then differ, and words that only look like pointers do not.
    let pools = [stream.capture_pool(CapturedWork::Runs)?, stream.capture_pool(CapturedWork::Runs)?];
    let mut moved = Vec::new();
    let mut pass = |number: usize, on: &Rerun| {
        let inputs = arguments.inputs(on.arguments().len());
        eager.capture(on.arguments(), || capture(stream, device, &pools[number % 2], function, on, inputs))
    };
    let mut earlier = pass(0, &first)?;
    loop {
        let elsewhere = Rerun::of_copies(arguments, inputs)?;
        let external = WatchedMemory::new();
        let mut capture = pass(moved.len() + 1, &elsewhere)?;
        external.limit_to(&capture.external_addresses());
        moved.push(elsewhere);
        let suspect = capture.confirm(&earlier).map_err(|error| stateful(error, &capture, &earlier))?;
        match suspect {
            None => {
                eager.finish()?;
                return Ok(Confirmed { capture, external });
            }
            Some(at) if moved.len() == ATTEMPTS => return Err(capture.unstable(at)),
            Some(_) => earlier = capture,
        }
    }
}

/// The error for two captures that differ. The host cannot read values during a capture, so only state on the host can make the
/// module launch something else.
fn stateful(difference: Error, capture: &Capture, earlier: &Capture) -> Error {
    let (reason, at) = match difference {
        Error::Unstable { at, first, second } => {
            (format!("it launches `{first}` at one call and `{second}` at the next"), at)
        }
        error => return error,
    };
    let op = capture.trace.ops.get(at).or(earlier.trace.ops.get(at));
    Error::Stateful { reason, scope: op.map(|op| op.label.clone()).unwrap_or_default() }
}
