//! The duration of an op that runs alone: as measured, or modelled from its bytes and operations.

use crate::device::DeviceModel;
use crate::kernel_catalog::{Class, Traffic};
use crate::trace::{Access, Launch, Op, Role, Trace, Work};

/// Microseconds that an op takes with the device to itself: measured where the trace says so, else modelled.
pub fn duration(trace: &Trace, op: &Op, class: Class, device: &DeviceModel) -> f64 {
    match op.nanos {
        Some(nanos) => nanos as f64 / 1e3,
        None => modelled(trace, op, class, device),
    }
}

/// Microseconds of any kernel, and of memory traffic or of arithmetic, whichever takes longer.
pub fn modelled(trace: &Trace, op: &Op, class: Class, device: &DeviceModel) -> f64 {
    let Demand { bytes, flops } = Demand::of(trace, op, class);
    let (share, threads) = match &op.work {
        Work::Kernel(launch) => concurrency(launch, device),
        Work::Memset(_) | Work::Memcpy(_) => (1., f64::INFINITY),
        Work::Host { .. } => (1. / f64::from(device.spec.processors.max(1)), f64::INFINITY),
    };
    let kernel = op.name.kernel();
    // The kernels of libraries load ahead, and much at a time.
    let in_turn = match class {
        Class::Memory if kernel.traffic != Traffic::SplitReduction => {
            device.access_us * bytes / kernel.precision.bytes() / threads
        }
        _ => 0.,
    };
    let memory = (bytes / (device.bandwidth_gbs * BYTES_PER_US)).max(in_turn);
    let arithmetic = flops / (device.tflops(kernel.precision) * FLOPS_PER_US * device.efficiency * share);
    device.kernel_us + memory.max(arithmetic)
}

/// At one GB/s.
pub const BYTES_PER_US: f64 = 1e3;
/// At one TFLOP/s.
pub const FLOPS_PER_US: f64 = 1e6;

/// The share of the multiprocessors that a kernel's blocks reach, and the threads that are resident at a time.
fn concurrency(launch: &Launch, device: &DeviceModel) -> (f64, f64) {
    let processors = f64::from(device.spec.processors.max(1));
    let blocks = launch.blocks().max(1) as f64;
    let resident = blocks.min(processors * f64::from(device.resident_blocks(launch)));
    ((blocks / processors).min(1.), resident * f64::from(launch.threads().max(1)))
}

/// Memory traffic and arithmetic of an op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Bytes that it reads and writes.
    pub bytes: f64,
    /// Floating-point operations, a multiply-add counting as two.
    pub flops: f64,
}

impl Demand {
    /// Derived from the accesses. Kernels of libraries count as accessing whole buffers, except workspaces.
    pub fn of(trace: &Trace, op: &Op, class: Class) -> Self {
        match op.work {
            Work::Memset(bytes) => Self { bytes: bytes as f64, flops: 0. },
            Work::Memcpy(bytes) => Self { bytes: 2. * bytes as f64, flops: 0. },
            Work::Host { bytes, flops } => Self { bytes: bytes as f64, flops: flops as f64 },
            Work::Kernel(_) => {
                let mut tensors: Vec<&Access> = Vec::with_capacity(op.accesses.len());
                let workspace = |a: &&Access| trace.buffers.get(a.buffer).is_some_and(|b| b.role == Role::Workspace);
                for access in op.accesses.iter().filter(|a| !workspace(a)) {
                    if !tensors.contains(&access) {
                        tensors.push(access);
                    }
                }
                let of = |written: bool| tensors.iter().filter(move |a| a.mode.writes() == written);
                let sizes = |written| of(written).map(|a| a.region.bytes() as f64);
                let (read, written): (f64, f64) = (sizes(false).sum(), sizes(true).sum());
                let kernel = op.name.kernel();
                match kernel.traffic {
                    Traffic::SplitReduction => return Self { bytes: 2. * written, flops: 0. },
                    Traffic::Gather => return Self { bytes: written + read.min(written), flops: 0. },
                    Traffic::Accesses => {}
                }
                let flops = match class {
                    Class::Compute => matmul_flops(sizes(false).collect(), sizes(true), kernel.precision.bytes()),
                    Class::Memory => 0.,
                };
                Self { bytes: read + written, flops }
            }
        }
    }
}

/// Operations of a matmul: twice the square root of the product of its three sizes M*K, K*N and M*N. The estimate is
/// low for convolutions with large windows and high for batched matmuls.
fn matmul_flops(mut read: Vec<f64>, written: impl Iterator<Item = f64>, element: f64) -> f64 {
    read.sort_by(|a, b| b.total_cmp(a));
    let (Some(written), [left, right, ..]) = (written.reduce(f64::max), &read[..]) else { return 0. };
    2. * (left / element * (right / element) * (written / element)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{AccessMode, Buffer, Region};

    fn trace(name: &str, accesses: &[(u64, Role, AccessMode)], nanos: Option<u64>) -> Trace {
        let launch = Launch { grid: [4096, 1, 1], block: [256, 1, 1], registers: 32, ..Default::default() };
        let access = |(buffer, &(bytes, _, mode)): (usize, &(u64, Role, AccessMode))| {
            let region = Region::contiguous(0, bytes);
            Access { buffer, region, mode }
        };
        let accesses_of = accesses.iter().enumerate().map(access).collect();
        let op = Op {
            name: name.into(),
            label: "".into(),
            work: Work::Kernel(launch),
            accesses: accesses_of,
            nanos,
            meaning: None,
        };
        let buffers = accesses.iter().map(|&(bytes, role, _)| Buffer { bytes, role }).collect();
        Trace { ops: vec![op], buffers, ..Default::default() }
    }

    fn demand(name: &str, class: Class, accesses: &[(u64, Role, AccessMode)]) -> Demand {
        let trace = trace(name, accesses, None);
        Demand::of(&trace, &trace.ops[0], class)
    }

    #[test]
    fn sizes_tell_the_operations_of_a_product() {
        // 128 x 768 by 768 x 3072, with a bias and a workspace.
        let sizes = |element: u64| {
            [
                (128 * 768 * element, Role::Intermediate, AccessMode::Read),
                (768 * 3072 * element, Role::External, AccessMode::Read),
                (3072 * element, Role::External, AccessMode::Read),
                (128 * 3072 * element, Role::Intermediate, AccessMode::ReadWrite),
                (1 << 30, Role::Workspace, AccessMode::ReadWrite),
            ]
        };
        for (name, element) in [("ampere_sgemm", 4), ("nvjet_hsh", 2)] {
            let found = demand(name, Class::Compute, &sizes(element));
            assert!((found.flops / (2. * 128. * 768. * 3072.) - 1.).abs() < 1e-9);
            assert_eq!(found.bytes, (128 * 768 + 768 * 3072 + 3072 + 128 * 3072) as f64 * element as f64);
        }
    }

    #[test]
    fn a_gather_reads_no_more_than_it_writes() {
        let table = [(1 << 30, Role::External, AccessMode::Read), (1 << 10, Role::Intermediate, AccessMode::Write)];
        assert_eq!(demand("is_u32_f32", Class::Memory, &table), Demand { bytes: 2048., flops: 0. });
    }

    #[test]
    fn measured_ops_are_not_modelled() {
        let device = DeviceModel::named("h200").unwrap();
        let bytes = 480_000_000;
        let of = |nanos| {
            let trace = trace("uexp_f32", &[(bytes, Role::Intermediate, AccessMode::ReadWrite)], nanos);
            duration(&trace, &trace.ops[0], Class::Memory, &device)
        };
        assert_eq!(of(Some(2500)), 2.5);
        assert!(of(None) >= device.kernel_us + bytes as f64 / device.bandwidth_gbs / BYTES_PER_US);
    }
}
