//! How long a schedule would take: an analytical model of a device, blocks, bandwidth and queues, that needs no device.
//!
//! The Opara paper leaves such a model of the interference between operators that run at the same time to future work.
//!
//! - A launch arrives once all that it waits for has ended. Where that is not just the one before it in a chain, waiting
//!   has a latency.
//! - Of those that have arrived, as many as the device has queues for are in flight, in launch order.
//! - Thread blocks go to the multiprocessors with the most room for them: threads, registers, shared memory and places
//!   for blocks. What does not fit waits, and what arrived later waits behind it: kernels are not preempted.
//! - Blocks that run share the device's bandwidth and its arithmetic. Where they ask for more than there is, each gets
//!   its fair part and takes that much longer.

mod agreement;
mod kernel;
mod processors;
mod run;

pub use self::agreement::{Agreement, SimulatedAndMeasured, PROCESS_NOISE};
pub use crate::device::{DeviceModel, UnknownDevice};

use self::kernel::SimulatedKernel;
use self::run::Run;
use crate::schedule::{Problem, Schedule};
use crate::timeline::{Span, Timeline};

/// When each op of a schedule of this trace would run on a device, which need not be the one that it was recorded on.
///
/// ```
/// use opara_plan::prepared::{Prepared, Settings};
/// use opara_plan::simulate::{simulate, DeviceModel};
/// use opara_plan::trace::Trace;
/// use opara_plan::{Policy, Scheduler};
///
/// let prepared = Prepared::new(&Trace::default(), Settings::default());
/// let schedule = Policy::Opara.schedule(&prepared.problem())?;
/// let timeline = simulate(&prepared.problem(), &schedule, &DeviceModel::named("a100-sxm")?);
/// assert_eq!(timeline.total_us, 0.);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Complexity
/// Linear in ops and edges, with the multiprocessors and what is in flight as factors.
pub fn simulate(problem: &Problem, schedule: &Schedule, device: &DeviceModel) -> Timeline {
    let trace = problem.trace;
    let recorded = DeviceModel::of(&trace.device);
    let kernels: Vec<SimulatedKernel> = trace
        .ops
        .iter()
        .zip(problem.profile)
        .map(|(op, cost)| SimulatedKernel::new(trace, op, cost, &recorded, device))
        .collect();
    let times = Run::new(&kernels, schedule, device).finish();
    let spans = times.into_iter().enumerate().map(|(op, (start_us, end_us))| Span {
        op,
        stream: schedule.stream[op],
        start_us,
        end_us,
    });
    let shares: Vec<f64> = kernels.iter().map(|kernel| kernel.share).collect();
    Timeline::new(spans.collect(), &shares)
}

#[cfg(test)]
mod tests;
