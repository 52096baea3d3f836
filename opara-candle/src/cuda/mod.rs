//! On a GPU: the trace is a captured CUDA graph, and a replay is a new graph with the schedule's edges.

mod arena;
mod capture;
mod driver;
mod kernels;
mod replay;

use std::sync::{mpsc, Arc, OnceLock};

use candle::{Device, Tensor};
use parking_lot::{Mutex, RwLock};

pub(crate) use self::arena::Arena;
use self::driver::Stream;
use self::replay::CudaProgram;
use crate::backend::{Example, Function, Recording};
use crate::executor::nested;
use crate::{verify, Error, Result};

/// Held for writing during a capture: a launch by another thread on the capturing stream would be captured, too.
static CAPTURING: RwLock<()> = RwLock::new(());

/// Runs `f` while no capture is under way.
pub(crate) fn while_not_capturing<T>(f: impl FnOnce() -> T) -> T {
    let _not_capturing = CAPTURING.read();
    f()
}

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

/// Captures `function` on copies of `inputs`; replays share `arena`.
pub(crate) fn record(function: &Function, inputs: &[Tensor], arena: &Arc<Arena>) -> Result<Recording> {
    let (function, inputs, arena) = (function.clone(), inputs.to_vec(), arena.clone());
    on_capture_thread(move || nested(|| record_here(&function, &inputs, arena)))
}

fn record_here(function: &Function, inputs: &[Tensor], arena: Arc<Arena>) -> Result<Recording> {
    let Some(device) = inputs.first().map(|t| t.device().clone()) else {
        return Err(Error::NotCapturable { reason: "it has no input".into() });
    };
    let stream = Stream::of(&device)?;
    if stream.is_legacy() {
        let reason = "its device uses the legacy default stream: make it with `opara_candle::cuda_device`".into();
        return Err(Error::NotCapturable { reason });
    }
    let _capturing = CAPTURING.write();
    let _tracking = stream.pause_event_tracking();
    // Weights and inputs may come from another thread's stream.
    stream.synchronize_device()?;
    if !driver::are_watched() {
        let reason = "this program looks the CUDA driver up at run time: build cudarc with `dynamic-linking`".into();
        return Err(Error::NotCapturable { reason });
    }
    // Eager forwards load kernels and fill the libraries' caches; their outputs are what replays are compared with.
    let mut examples = Vec::new();
    for inputs in [inputs.to_vec(), verify::other_values(inputs)?] {
        let mut outputs = Vec::new();
        let on_example = examples.is_empty();
        let eager_us = time_us(&device, || {
            outputs = function(&inputs)?;
            Ok(())
        })
        .map_err(|e| if on_example { e } else { verify::fails_on_other_values(e) })?;
        // The pass that is captured copies these at its end: load the kernel for that, too.
        for output in outputs.iter().filter(|o| !o.is_contiguous()) {
            output.force_contiguous()?;
        }
        examples.push(Example { inputs, outputs, eager_us });
    }
    let inputs: Vec<Tensor> = inputs.iter().map(Tensor::force_contiguous).collect::<candle::Result<_>>()?;
    stream.synchronize_device()?;
    let first = capture::capture(&stream, &device, function, &inputs)?;
    let capture = capture::capture(&stream, &device, function, &inputs)?;
    agree(&first, &capture)?;
    drop(first);
    let trace = capture.trace.clone();
    let program = CudaProgram { capture, stream, device, function: function.clone(), arena };
    Ok(Recording { trace, examples, program: Arc::new(program) })
}

/// Two captures of one module launch the same work.
fn agree(first: &capture::Capture, second: &capture::Capture) -> Result<()> {
    let (a, b) = (&first.trace.ops, &second.trace.ops);
    for at in 0..a.len().max(b.len()) {
        let same = matches!((a.get(at), b.get(at)), (Some(a), Some(b)) if a.name == b.name && a.work == b.work);
        if !same {
            let name = |ops: &[crate::trace::Op]| ops.get(at).map_or("nothing".into(), |op| op.name.clone());
            return Err(Error::Unstable { at, first: name(a), second: name(b) });
        }
    }
    Ok(())
}

/// Runs `job` on the one thread that captures, and waits for it.
///
/// candle keeps cuDNN's handle in a thread-local: this thread, and so the handle that captured kernels were chosen with,
/// never ends. Captures of all executors take turns on it.
fn on_capture_thread<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    type Job = Box<dyn FnOnce() + Send>;
    static THREAD: OnceLock<Option<Mutex<mpsc::Sender<Job>>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        let run = move || jobs.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("opara-capture".into()).spawn(run).ok().map(|_| Mutex::new(sender))
    });
    let lost = || Error::NotCapturable { reason: "the capture thread could not be started or has ended".into() };
    let (sender, result) = mpsc::channel();
    // Warnings and spans go where the caller's go.
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let job: Job = Box::new(move || drop(sender.send(tracing::dispatcher::with_default(&dispatch, job))));
    thread.as_ref().ok_or_else(lost)?.lock().send(job).map_err(|_| lost())?;
    result.recv().map_err(|_| lost())?
}

/// Microseconds between an event before and one after what `f` launches.
pub(crate) fn time_us(device: &Device, f: impl FnOnce() -> candle::Result<()>) -> Result<f64> {
    let stream = Stream::of(device)?;
    let (start, end) = (stream.event(true)?, stream.event(true)?);
    stream.record(&start)?;
    f()?;
    stream.record(&end)?;
    start.elapsed_us(&end)
}

/// Name of the device.
pub(crate) fn device_name(device: &Device) -> String {
    Stream::of(device).and_then(|s| s.device_spec()).map_or("cuda".into(), |spec| spec.name)
}

/// Free memory of the device in bytes.
pub(crate) fn free_memory(device: &Device) -> Result<usize> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.free_memory()
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
