//! The cost model: the resources that each op takes, and the resource that limits it.

use serde::{Deserialize, Serialize};

use crate::device::DeviceModel;
use crate::duration::duration;
pub use crate::kernel_catalog::Class;
use crate::trace::{DeviceSpec, Launch, Op, Trace, Work};

/// Shares of a multiprocessor that one thread block takes. All are 0 for ops without blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockDemand {
    /// Share of the threads.
    pub threads: f64,
    /// Share of the registers.
    pub registers: f64,
    /// Share of the shared memory.
    pub shared_memory: f64,
}

impl BlockDemand {
    fn new(launch: &Launch, device: &DeviceSpec) -> Self {
        let threads = launch.threads() as u64;
        Self {
            threads: share(threads, device.threads_per_processor),
            registers: share(launch.registers as u64 * threads, device.registers_per_processor),
            shared_memory: share(launch.shared() as u64, device.shared_memory_per_processor),
        }
    }

    /// The largest of these shares.
    pub fn scarcest(&self) -> f64 {
        self.threads.max(self.registers).max(self.shared_memory)
    }
}

/// Resources of one op.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OpProfile {
    /// The limiting resource.
    pub class: Class,
    /// Share of the whole device that all its blocks would take at once, by the scarcest of threads, registers and
    /// shared memory; above 1 if they do not fit. For host operators: operations and bytes.
    pub demand: f64,
    /// Number of times that the device must be filled to run all its blocks.
    pub waves: f64,
    /// The demand of one block.
    pub block: BlockDemand,
    /// Share of the device that is occupied while it runs, at most 1. A host operator takes one core.
    pub share: f64,
    /// Microseconds if it runs alone: from the trace if it was measured, else modelled.
    pub us: f64,
}

/// A host operator with fewer operations per byte than this counts as memory-intensive.
const FLOPS_PER_BYTE: u64 = 4;

/// Profiles every op of a trace, from the attributes that it carries (Opara, Sec. III-B: one pass, nothing is run).
pub fn profile(trace: &Trace) -> Vec<OpProfile> {
    let device = &trace.device;
    let resources = |op: &Op| match &op.work {
        Work::Kernel(launch) => {
            let class = op.name.kernel().class;
            let block = BlockDemand::new(launch, device);
            let demand = share(launch.blocks(), device.processors) * block.scarcest();
            let waves = share(launch.blocks(), device.processors * launch.resident_blocks.max(1));
            OpProfile { class, demand, waves, block, share: demand.min(1.), us: 0. }
        }
        // Copies need no multiprocessor to be free.
        Work::Memset(_) | Work::Memcpy(_) => OpProfile::default(),
        Work::Host { bytes, flops } => {
            let class = if *flops > FLOPS_PER_BYTE * bytes { Class::Compute } else { Class::Memory };
            let share = share(1, device.processors);
            OpProfile { class, demand: (flops + bytes) as f64, waves: 1., share, ..Default::default() }
        }
    };
    let model = DeviceModel::of(device);
    let timed = |op: &Op| {
        let profile = resources(op);
        OpProfile { us: duration(trace, op, profile.class, &model), ..profile }
    };
    trace.ops.iter().map(timed).collect()
}

fn share(needed: u64, available: u32) -> f64 {
    if available == 0 {
        0.
    } else {
        needed as f64 / available as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_resource_decides() {
        let device = DeviceSpec {
            name: "toy".into(),
            processors: 4,
            threads_per_processor: 1024,
            registers_per_processor: 65536,
            shared_memory_per_processor: 100_000,
        };
        let launch = Launch {
            grid: [8, 1, 1],
            block: [128, 1, 1],
            registers: 64,
            static_shared: 20_000,
            dynamic_shared: 30_000,
            resident_blocks: 2,
        };
        let op = |name: &str| Op {
            name: name.into(),
            label: String::new(),
            work: Work::Kernel(launch),
            accesses: vec![],
            nanos: Some(7500),
            meaning: None,
        };
        let ops = vec![op("ampere_sgemm_32x32"), op("badd_f32")];
        let found = profile(&Trace { device, ops, ..Default::default() });
        // Half a multiprocessor's shared memory a block, eight blocks, four multiprocessors.
        let block = BlockDemand { threads: 0.125, registers: 0.125, shared_memory: 0.5 };
        let expected = OpProfile { class: Class::Compute, demand: 1., waves: 1., block, share: 1., us: found[0].us };
        assert_eq!(found[0], expected);
        assert_eq!(found[1].class, Class::Memory);
    }
}
