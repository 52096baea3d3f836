//! What it costs: the resources that each op takes, and what limits it.

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::duration::duration;
use crate::trace::{DeviceSpec, Launch, Trace, Work};

/// What limits an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Arithmetic: matrix products and convolutions.
    Compute,
    /// Memory: everything else.
    Memory,
}

/// Resources of one op.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OpProfile {
    /// What limits it.
    pub class: Class,
    /// Share of the whole device that its blocks take at once, by the scarcest of threads, registers and shared
    /// memory; above 1 where they do not fit. For host operators: their operations and bytes.
    pub demand: f64,
    /// How many times the device must be filled to run all its blocks.
    pub waves: f64,
    /// Microseconds alone on the device: measured where the trace says so, else modelled.
    pub us: f64,
}

/// Parts of the names of library kernels that do matrix products and convolutions.
const COMPUTE_KERNELS: &[&str] = &[
    "gemm",
    "gemv",
    "nvjet",
    "cutlass",
    "xmma",
    "conv1d",
    "conv2d",
    "convolve",
    "winograd",
    "conv_transpose",
    "mul_mat",
];

/// Bytes moved an operation above which a host operator counts as memory-intensive.
const FLOPS_PER_BYTE: u64 = 4;

/// Profiles every op of a trace, from the attributes that it carries (Opara, Sec. III-B: one pass, nothing is run).
pub fn profile(trace: &Trace) -> Vec<OpProfile> {
    let device = Device::of(&trace.device);
    trace
        .ops
        .iter()
        .map(|op| {
            let (class, demand, waves) = match &op.work {
                Work::Kernel(launch) => {
                    let compute =
                        COMPUTE_KERNELS.iter().any(|part| op.name.contains(part)) && !op.name.starts_with("im2col");
                    let class = if compute { Class::Compute } else { Class::Memory };
                    (class, demand(launch, &trace.device), waves(launch, &trace.device))
                }
                // Copies need no multiprocessor to be free.
                Work::Memset(_) | Work::Memcpy(_) => (Class::Memory, 0., 0.),
                Work::Host { bytes, flops } => {
                    let class = if *flops > FLOPS_PER_BYTE * bytes { Class::Compute } else { Class::Memory };
                    (class, (flops + bytes) as f64, 1.)
                }
            };
            OpProfile { class, demand, waves, us: duration(trace, op, class, &device) }
        })
        .collect()
}

fn share(needed: u64, available: u32) -> f64 {
    if available == 0 {
        0.
    } else {
        needed as f64 / available as f64
    }
}

fn demand(launch: &Launch, device: &DeviceSpec) -> f64 {
    let threads = share(launch.threads() as u64, device.threads_per_processor);
    let registers = share(launch.registers as u64 * launch.threads() as u64, device.registers_per_processor);
    let shared = share(launch.shared() as u64, device.shared_memory_per_processor);
    share(launch.blocks(), device.processors) * threads.max(registers).max(shared)
}

fn waves(launch: &Launch, device: &DeviceSpec) -> f64 {
    share(launch.blocks(), device.processors * launch.resident_blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Op;

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
            nanos: None,
        };
        let ops = vec![op("ampere_sgemm_32x32"), op("badd_f32")];
        let found = profile(&Trace { device, ops, ..Default::default() });
        // Half a multiprocessor's shared memory a block, eight blocks, four multiprocessors.
        assert_eq!((found[0].class, found[0].demand, found[0].waves), (Class::Compute, 1.0, 1.0));
        assert_eq!(found[1].class, Class::Memory);
    }
}
