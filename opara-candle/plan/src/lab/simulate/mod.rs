//! Simulates a schedule on a model of a device: multiprocessors, bandwidth and queues.
//!
//! The Opara paper leaves a model of the interference between concurrent operators to future work. The rules of this one:
//!
//! - A launch arrives when its predecessors have ended. A wait adds a latency, unless predecessor and successor have only each
//!   other.
//! - The device has a number of queues. So many of the launches that have arrived are in flight, in launch order.
//! - Thread blocks go to the multiprocessors with the most room: threads, registers, shared memory and block slots. Blocks that do
//!   not fit wait, and later launches wait behind them: kernels are not preempted.
//! - Running blocks share the device's bandwidth and arithmetic. If they demand more than there is, each gets a fair share and takes
//!   longer in proportion.

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

/// Predicts when each op of a schedule runs on `device`, which may differ from the device of the recording.
///
/// ```
/// use opara_plan::prepared::{Prepared, Settings};
/// use opara_plan::simulate::{simulate, DeviceModel};
/// use opara_plan::trace::Trace;
/// use opara_plan::{BuiltIn, Scheduler};
///
/// let prepared = Prepared::new(&Trace::default(), Settings::default());
/// let schedule = BuiltIn::Opara.schedule(&prepared.problem())?;
/// let timeline = simulate(&prepared.problem(), &schedule, &DeviceModel::named("a100-sxm")?);
/// assert_eq!(timeline.total_us, 0.);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Complexity
/// Linear in ops and edges, times the number of multiprocessors and of launches in flight.
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
