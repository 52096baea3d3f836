//! The stage `record`: calls the module and records its launches.

use std::sync::Arc;

use candle::{Device, Tensor};
use parking_lot::Mutex;

use super::build::Build;
use crate::backend::{Function, Recording};
use crate::timing;
use crate::{capture_thread, cpu, cuda, Error, Result};

/// Records a pass. Its time counts as `trace`; the time of the module's own calls, until the device has finished them, counts as
/// `forward`.
pub(super) fn record(
    function: &Function,
    inputs: &[Tensor],
    arena: &Arc<cuda::Arena>,
    build: &mut Build,
) -> Result<Recording> {
    let (function, calls) = watched(function);
    let examples = build.options.examples();
    let recording = build.times.time("trace", || match build.device {
        // A thread of a pool takes other tasks while the module waits for one, and their operators would be recorded, too.
        Device::Cpu if rayon::current_thread_index().is_some() => {
            let (function, inputs, examples) = (function.clone(), inputs.to_vec(), examples.clone());
            capture_thread::run(move || cpu::record(&function, &inputs, &examples))
        }
        Device::Cpu => cpu::record(&function, inputs, &examples),
        Device::Cuda(_) => cuda::record(&function, inputs, &examples, arena),
        Device::Metal(_) => {
            Err(Error::NotCapturable { reason: "Metal devices are not supported: use CUDA or the CPU".into() })
        }
    });
    let Calls { spent_ms, has_answered, is_tracked } = std::mem::take(&mut *calls.lock());
    build.times.move_ms("trace", "forward", spent_ms);
    build.has_answered |= has_answered;
    build.is_tracked |= is_tracked;
    let recording = recording?;
    build.times.move_ms("trace", "forward", recording.unfinished_us / 1e3);
    recording.trace.validate()?;
    Ok(recording)
}

/// Calls of a function.
#[derive(Default)]
struct Calls {
    /// Milliseconds of all of them.
    spent_ms: f64,
    /// Has one of them succeeded?
    has_answered: bool,
    /// Did candle track an output? The module has variables then.
    is_tracked: bool,
}

/// Wraps the function so that its calls are counted.
fn watched(function: &Function) -> (Function, Arc<Mutex<Calls>>) {
    let (function, calls) = (function.clone(), Arc::new(Mutex::new(Calls::default())));
    let watch = calls.clone();
    let watched = move |inputs: &[Tensor]| {
        let (outputs, us) = timing::wall_us(|| function(inputs));
        let mut calls = watch.lock();
        calls.spent_ms += us / 1e3;
        calls.has_answered |= outputs.is_ok();
        calls.is_tracked |= outputs.iter().flatten().any(Tensor::track_op);
        outputs
    };
    (Arc::new(watched), calls)
}
