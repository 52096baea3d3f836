//! On a GPU: the trace is a captured CUDA graph, and a replay is a new graph with the schedule's edges.

mod arena;
mod capture;
mod capturing;
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

pub(crate) use self::arena::Arena;
use self::capture::Capture;
pub(crate) use self::capturing::{while_not_capturing, while_waiting};
use self::driver::{Stream, WatchedMemory};
use self::replay::CudaProgram;
use crate::backend::{Example, Function, Fusing, Recording};
use crate::timing::{micros_since, Sample};
use crate::{home, verify, Error, Result};

/// A CUDA device on which modules can be captured: it has a stream of its own, and cudarc's event tracking, which one
/// stream does not need and a capture does not bear, is off.
///
/// `Device::new_cuda_with_stream` and `Device::new_cuda` work, too; of the latter, remember that every thread has
/// another stream behind it.
///
/// While an executor is built, other threads should launch nothing on this device but calls of executors, which wait:
/// what they launch would be captured. It is found then, since two captures must agree, and the module runs eagerly.
///
/// # Errors
/// No such device, or no driver.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    std::mem::forget(Stream::of(&device)?.pause_event_tracking());
    Ok(device)
}

/// Captures `function` on copies of `inputs`, and fuses what it can if asked to; replays share `arena`.
pub(crate) fn record(
    function: &Function,
    inputs: &[Tensor],
    arena: &Arc<Arena>,
    fusing: Option<Fusing>,
) -> Result<Recording> {
    let (function, inputs, arena) = (function.clone(), inputs.to_vec(), arena.clone());
    home::run(move || {
        let Recorded { stream, device, mut capture, external, examples } =
            capturing::exclusively(|| record_here(&function, &inputs))?;
        let launches = capture.trace.ops.len();
        let replaced = fusing.map_or(Ok(0), |fusing| capture.fuse(&stream, &device, &fusing))?;
        let fused = launches - capture.trace.ops.len();
        let trace = capture.trace.clone();
        let workspaces = Arena::of_workspaces(&stream);
        let program = CudaProgram { capture, external, stream, device, function, arena, workspaces };
        Ok(Recording { trace, replaced, fused, examples, program: Arc::new(program) })
    })
}

/// A capture, what it was made with, and what eager execution gave.
struct Recorded {
    stream: Stream,
    device: Device,
    capture: Capture,
    /// The module's memory that the capture uses.
    external: WatchedMemory,
    examples: Vec<Example>,
}

fn record_here(function: &Function, inputs: &[Tensor]) -> Result<Recorded> {
    let Some(device) = inputs.first().map(|t| t.device().clone()) else {
        return Err(Error::NotCapturable { reason: "it has no input".into() });
    };
    let stream = Stream::of(&device)?;
    if stream.is_legacy() {
        let reason = "its device uses the legacy default stream: make it with `opara_candle::cuda_device`".into();
        return Err(Error::NotCapturable { reason });
    }
    let _tracking = stream.pause_event_tracking();
    // Weights and inputs may come from another thread's stream.
    stream.synchronize_device()?;
    if !driver::are_watched() {
        let reason = "this program looks the CUDA driver up at run time: build cudarc with `dynamic-linking`".into();
        return Err(Error::NotCapturable { reason });
    }
    // A replay reads contiguous inputs, and products of others may round otherwise.
    let inputs = &inputs.iter().map(Tensor::contiguous).collect::<candle::Result<Vec<_>>>()?;
    // Eager forwards load kernels and fill the libraries' caches; their outputs are what replays are compared with.
    let mut examples = Vec::new();
    for inputs in [inputs.to_vec(), verify::other_values(inputs)?] {
        let mut outputs = Vec::new();
        let on_example = examples.is_empty();
        let eager = sample(&device, || {
            outputs = function(&inputs)?;
            Ok(())
        })
        .map_err(|e| if on_example { e } else { verify::fails_on_other_values(e) })?;
        // The pass that is captured copies these at its end: load the kernel for that, too.
        for output in outputs.iter().filter(|o| !o.is_contiguous()) {
            output.force_contiguous()?;
        }
        examples.push(Example::new(inputs, &outputs, eager.gpu_us));
    }
    let inputs: Vec<Tensor> = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<_>>()?;
    stream.synchronize_device()?;
    let (capture, external) = confirmed(&stream, &device, function, &inputs)?;
    Ok(Recorded { stream, device, capture, external, examples })
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
        match capture.confirm(&earlier)? {
            None => return Ok((capture, external)),
            Some(at) if moved.len() == ATTEMPTS => return Err(capture.unstable(at)),
            Some(_) => earlier = capture,
        }
    }
}

/// Another thread goes on with these tensors: where every thread has a stream of its own, waits for what this thread's
/// has to do.
pub(crate) fn hand_over(tensors: &[Tensor]) -> Result<()> {
    match tensors.first().map(Tensor::device) {
        Some(device) if device.is_cuda() && Stream::of(device)?.is_per_thread() => {
            Ok(while_not_capturing(|| device.synchronize())?)
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
