//! The model of one op on a simulated device.

use crate::device::{DeviceModel, RESOURCES};
use crate::duration::{self, Demand};
use crate::profile::OpProfile;
use crate::trace::{Op, Trace, Work};

/// The resources that concurrent kernels share: bandwidth and arithmetic.
pub(super) type Shared = [f64; 2];

/// An op as parts that are placed one by one. A part is a block; if the blocks fill the device more than [`WAVES`] times, a part
/// is several blocks in sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SimulatedKernel {
    /// The number of parts; 0 for copies, which no multiprocessor runs.
    pub parts: u64,
    /// Minimum number of parts that are placed at a time, unless fewer are left.
    pub least: u64,
    /// The resources of one multiprocessor that a part occupies.
    pub needs: [u32; RESOURCES],
    /// Duration of a part in microseconds.
    pub us: f64,
    /// The shares of the device's bandwidth and arithmetic that a part uses.
    pub draws: Shared,
    /// Share of the device's multiprocessors that the kernel occupies at a time.
    pub share: f64,
}

/// Maximum number of simulated multiprocessors; no GPU has as many.
const PROCESSORS: u64 = 1024;
/// Maximum number of waves that are simulated of one kernel; more would not change the result.
const WAVES: u64 = 8;
/// Maximum number of portions in which a full device is filled; otherwise each block would be an event.
const PORTIONS: u64 = 16;
/// An upper bound of times, so that sums stay finite.
pub(super) const LONGEST_US: f64 = 1e12;

impl SimulatedKernel {
    pub fn new(trace: &Trace, op: &Op, cost: &OpProfile, recorded: &DeviceModel, device: &DeviceModel) -> Self {
        let us = limited(if recorded == device {
            cost.us
        } else {
            let model = |device| duration::modelled(trace, op, cost.class, device);
            cost.us * model(device) / model(recorded)
        });
        let demand = Demand::of(trace, op, cost.class);
        let bandwidth = device.bandwidth_gbs * duration::BYTES_PER_US;
        let arithmetic = device.tflops(op.name.kernel().precision) * duration::FLOPS_PER_US * device.efficiency;
        let draws = [demand.bytes / bandwidth, demand.flops / arithmetic].map(|alone| within(alone / us, 1.));

        let (processors, of_each) = processors(device);
        let (blocks, needs) = match &op.work {
            Work::Kernel(launch) => (launch.blocks().max(1).div_ceil(of_each), device.block(launch)),
            Work::Host { .. } => (1, device.processor()),
            Work::Memset(_) | Work::Memcpy(_) => {
                return Self { parts: 0, least: 0, needs: [0; RESOURCES], us, draws, share: 0. }
            }
        };
        let parts_of = needs.iter().zip(device.processor()).map(|(&needs, has)| has / needs.max(1));
        let at_a_time = processors * u64::from(parts_of.min().unwrap_or(1));
        let parts = blocks.div_ceil(blocks.div_ceil(WAVES * at_a_time));
        let of_processor = needs.iter().zip(device.processor()).map(|(&needs, has)| f64::from(needs) / f64::from(has));
        let together = parts.min(at_a_time) as f64;
        Self {
            parts,
            least: at_a_time.div_ceil(PORTIONS),
            needs,
            us: us / parts.div_ceil(at_a_time) as f64,
            draws: draws.map(|draw| draw / together),
            share: (together * of_processor.fold(0., f64::max) / processors as f64).min(1.),
        }
    }
}

/// The number of simulated multiprocessors, and how many of the device's each of them represents.
pub(super) fn processors(device: &DeviceModel) -> (u64, u64) {
    let processors = u64::from(device.spec.processors.max(1));
    let of_each = processors.div_ceil(PROCESSORS);
    (processors.div_ceil(of_each), of_each)
}

/// A time, limited so that it can be added up; NaN and negative values become 0.
pub(super) fn limited(us: f64) -> f64 {
    within(us, LONGEST_US)
}

/// `value` limited to 0..=`most`; NaN becomes 0.
fn within(value: f64, most: f64) -> f64 {
    if value > 0. {
        value.min(most)
    } else {
        0.
    }
}
