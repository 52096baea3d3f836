//! On a GPU: the trace is a captured CUDA graph, and a replay is a new graph with the schedule's edges.

mod arena;
mod capture;
mod driver;
mod fuse;
mod kernels;
pub(crate) mod ops;
mod read;
mod replay;
mod spans;

use std::sync::Arc;
use std::time::Instant;

use candle::{Device, Tensor};
use opara_plan::latency::Sample;
use opara_plan::stopwatch::micros_since;
use parking_lot::Mutex;

pub(crate) use self::arena::Arena;
use self::capture::Capture;
pub(crate) use self::driver::unwatched;
pub(crate) use self::driver::Handover;
use self::driver::{Stream, WatchedMemory, WrittenMemory};
use self::replay::CudaProgram;
use crate::backend::{Example, Function, Fusing, Recording};
use crate::examples::{Examples, Other};
use crate::{capture_thread, verify, Error, Result};

/// A CUDA device on which modules can be captured: candle's device with a stream of its own
/// (`Device::new_cuda_with_stream`).
///
/// `Device::new_cuda` works, too; remember that every thread has another stream behind it. Other threads may use the
/// device as they like while executors are built on it: what they launch is no part of a capture.
///
/// # Errors
/// No such device, or no driver.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    Ok(Device::new_cuda_with_stream(ordinal)?)
}

/// Captures `function` on copies of `inputs`, and fuses what it can if asked to; replays share `arena`.
pub(crate) fn record(
    function: &Function,
    inputs: &[Tensor],
    examples: &Examples,
    arena: &Arc<Arena>,
    fusing: Option<Fusing>,
) -> Result<Recording> {
    let (function, inputs, arena) = (function.clone(), inputs.to_vec(), arena.clone());
    let further = examples.clone();
    capture_thread::run(move || {
        let Recorded { stream, device, mut capture, external, examples, state } =
            record_here(&function, &inputs, &further)?;
        let launches = capture.trace.ops.len();
        let fuse::Replaced { launches: replaced, refused } = match fusing {
            Some(fusing) => capture.fuse(&stream, &device, &fusing)?,
            None => fuse::Replaced::default(),
        };
        let notes = notes(&device, &refused)?;
        let fused = launches - capture.trace.ops.len();
        let trace = capture.trace.clone();
        let workspaces = Arena::of_workspaces(&stream);
        let state = Mutex::new(Some(state));
        let program = CudaProgram { capture, external, stream, device, function, arena, workspaces, state };
        Ok(Recording { trace, replaced, fused, notes, examples, program: Arc::new(program) })
    })
}

/// What could be faster and is not, and why: what the device lacks, and kernels that were not compiled, the first reason of all.
fn notes(device: &Device, refused: &[String]) -> Result<Vec<String>> {
    let mut notes = driver::kernels::lacks(device.as_cuda_device()?)?;
    if let Some(first) = refused.first() {
        let groups = if refused.len() == 1 { "group" } else { "groups" };
        let note = format!("{} {groups} of launches not fused: {first}", refused.len());
        tracing::warn!("{note}");
        notes.push(note);
    }
    Ok(notes)
}

/// A capture, what it was made with, and what eager execution gave.
struct Recorded {
    stream: Stream,
    device: Device,
    capture: Capture,
    /// The module's memory that the capture uses.
    external: WatchedMemory,
    examples: Vec<Example>,
    /// The module's state on the device from before the first pass.
    state: WrittenMemory,
}

fn record_here(function: &Function, inputs: &[Tensor], further: &Examples) -> Result<Recorded> {
    let Some(device) = inputs.first().map(|t| t.device().clone()) else {
        return Err(Error::NotCapturable { reason: "it has no input".into() });
    };
    let stream = Stream::of(&device)?;
    if stream.is_legacy() {
        let reason = "its device uses the legacy default stream: make it with `opara_candle::cuda_device`".into();
        return Err(Error::NotCapturable { reason });
    }
    // Weights and inputs may come from another thread's stream.
    stream.wait_for_all()?;
    if !driver::is_interposed() {
        let reason = "this program looks the CUDA driver up at run time: build cudarc with `dynamic-linking`".into();
        return Err(Error::NotCapturable { reason });
    }
    // A replay reads contiguous inputs, and products of others may round otherwise.
    let inputs = &inputs.iter().map(Tensor::contiguous).collect::<candle::Result<Vec<_>>>()?;
    // Eager forwards load kernels and fill the libraries' caches; their outputs are what replays are compared with.
    let mut state = WrittenMemory::new(&stream, kernels::written_by);
    let mut pass = |inputs: &[Tensor]| -> Result<(Vec<Tensor>, f64)> {
        // A module may write to what it is called with.
        let inputs = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<Vec<_>>>()?;
        let mut outputs = Vec::new();
        let forward = || {
            outputs = function(&inputs)?;
            Ok(())
        };
        let eager = sample(&device, || state.watch(forward)?);
        state.restore()?;
        let eager = eager?;
        Ok((outputs, eager.gpu_us))
    };
    let (outputs, us) = pass(inputs)?;
    // The pass that is captured copies these at its end: load the kernel for that, too.
    for output in outputs.iter().filter(|o| !o.is_contiguous()) {
        output.force_contiguous()?;
    }
    let mut examples = vec![Example::new(inputs.to_vec(), &outputs, us)];
    drop(outputs);
    let mut refused = None;
    for Other { inputs, given } in further.others(inputs)? {
        let inputs = inputs.iter().map(Tensor::contiguous).collect::<candle::Result<Vec<_>>>()?;
        match pass(&inputs) {
            Ok((outputs, us)) => examples.push(Example::new(inputs, &outputs, us)),
            Err(Error::Candle(source)) if !given => refused = Some(Error::FailsOnOtherValues { source }),
            Err(error) => return Err(error),
        }
    }
    // After all others, so that what they left behind shows.
    let (again, us) = pass(inputs)?;
    examples[0].eager_us = examples[0].eager_us.min(us);
    let mut repeats = check_repeats(&examples[0].outputs, &again);
    drop(again);
    let capture = || {
        let inputs = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<Vec<_>>>()?;
        stream.wait_for_all()?;
        confirmed(&stream, &device, function, &inputs)
    };
    let mut captured = match refused {
        Some(refused) if repeats.is_ok() => Err(refused),
        _ => capture(),
    };
    for _ in 0..RETRIES {
        // Where answers repeat it may be the call of another thread, for which the module made a table for other shapes: one
        // more pass makes it for these.
        if repeats.is_err() || !matches!(captured, Err(Error::Stateful { .. })) {
            break;
        }
        repeats = check_repeats(&examples[0].outputs, &pass(inputs)?.0);
        captured = capture();
    }
    if captured.as_ref().is_err_and(|error| error.is_uncapturable() && !draws_random_numbers(error)) {
        // It would go on running eagerly. Two calls in a row also find state that alternates.
        for _ in 0..2 {
            if repeats.is_ok() {
                repeats = check_repeats(&examples[0].outputs, &pass(inputs)?.0);
            }
        }
    }
    let (capture, external) = match (repeats, captured) {
        (Ok(()), captured) => captured?,
        // Where it keeps state, or why calls differ without any.
        (Err(_), Err(error)) if draws_random_numbers(&error) || matches!(error, Error::Stateful { .. }) => {
            return Err(error)
        }
        (Err(error), _) => return Err(error),
    };
    Ok(Recorded { stream, device, capture, external, examples, state })
}

/// How often a capture that shows state is made again, where the module's answers show none.
const RETRIES: usize = 3;

/// Checks that two calls with the same inputs gave the same bits.
fn check_repeats(expected: &[Tensor], got: &[Tensor]) -> Result<()> {
    verify::same_bits("second call", expected, got).map_err(|error| match error {
        Error::Mismatch { output, differing, elements, .. } => Error::stateful(format!(
            "two calls with the same inputs give other outputs: output {output} differs in {differing} of {elements} elements. \
             Or it is not deterministic"
        )),
        error => error,
    })
}

/// Whether a capture was refused for its random numbers, see `read`: calls differ then, without any state.
fn draws_random_numbers(error: &Error) -> bool {
    matches!(error, Error::NotCapturable { reason } if reason.starts_with("it draws random numbers"))
}

/// A capture that another one agrees with, and the module's memory that it uses, watched since it began.
fn confirmed(
    stream: &Stream,
    device: &Device,
    function: &Function,
    inputs: &[Tensor],
) -> Result<(Capture, WatchedMemory)> {
    const ATTEMPTS: usize = 4;
    let mut earlier = capture::capture(stream, device, function, inputs)?;
    // Elsewhere in memory each time: what is a pointer differs, and what only looks like one does not.
    let mut moved = Vec::new();
    loop {
        let elsewhere: Vec<Tensor> = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<_>>()?;
        let external = WatchedMemory::new();
        let mut capture = capture::capture(stream, device, function, &elsewhere)?;
        external.limit_to(&capture.external);
        moved.push(elsewhere);
        let suspect = capture.confirm(&earlier).map_err(|error| stateful(error, &capture, &earlier))?;
        match suspect {
            None => return Ok((capture, external)),
            Some(at) if moved.len() == ATTEMPTS => return Err(capture.unstable(at)),
            Some(_) => earlier = capture,
        }
    }
}

/// What a difference between two captures means: values are not known to the host while it is captured, so that only state
/// of its own can make it launch something else.
fn stateful(difference: Error, capture: &Capture, earlier: &Capture) -> Error {
    let (reason, at) = match difference {
        _ if capture.outputs.len() != earlier.outputs.len() => (
            format!(
                "it returns {} tensors at one call and {} at the next",
                earlier.outputs.len(),
                capture.outputs.len()
            ),
            None,
        ),
        Error::Unstable { at, first, second } => {
            (format!("it launches `{first}` at one call and `{second}` at the next"), Some(at))
        }
        error => return error,
    };
    let op = at.and_then(|at| capture.trace.ops.get(at).or(earlier.trace.ops.get(at)));
    Error::Stateful { reason, scope: op.map(|op| op.label.clone()).unwrap_or_default() }
}

/// Another thread goes on with these tensors: where every thread has a stream of its own, waits for what this thread's
/// has to do.
pub(crate) fn hand_over(tensors: &[Tensor]) -> Result<()> {
    match tensors.first().map(Tensor::device) {
        // In a capture nothing has run yet.
        Some(device) if device.is_cuda() && Stream::of(device)?.is_per_thread() && !driver::is_capturing() => {
            Ok(device.synchronize()?)
        }
        _ => Ok(()),
    }
}

/// One call of `f`; on the device, from an event before to one after what it launches.
pub(crate) fn sample(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<Sample> {
    let stream = Stream::of(device)?;
    let (start, end) = (stream.event(true)?, stream.event(true)?);
    stream.record(&start)?;
    let began = Instant::now();
    f()?;
    let host_us = micros_since(began);
    stream.record(&end)?;
    let gpu_us = start.elapsed_us(&end)?;
    Ok(Sample { gpu_us, wall_us: micros_since(began), host_us })
}

/// Name of the device.
pub(crate) fn device_name(device: &Device) -> String {
    Stream::of(device).and_then(|s| s.device_spec()).map_or("cuda".into(), |spec| spec.name)
}

/// Version of the driver, as far as schedules are concerned.
pub(crate) fn driver_version(device: &Device) -> String {
    Stream::of(device).and_then(|s| s.driver_version()).map_or("unknown".into(), |version| version.to_string())
}

/// Free memory of the device in bytes.
pub(crate) fn free_memory(device: &Device) -> Result<usize> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.free_memory()
}

/// Bytes of the device in use that are not its memory pool's, after all its work is done.
pub(crate) fn used_outside_pool(device: &Device) -> Result<u64> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.used_outside_pool()
}

/// Bytes in use of the device's memory pool, after all its work is done.
pub(crate) fn pool_in_use(device: &Device) -> Result<u64> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.pool_in_use()
}

/// The most that were in use since the mark was reset.
pub(crate) fn pool_peak(device: &Device) -> Result<u64> {
    Stream::of(device)?.pool_peak()
}

/// Starts looking for a new peak.
pub(crate) fn reset_pool_peak(device: &Device) -> Result<()> {
    Stream::of(device)?.reset_pool_peak()
}
