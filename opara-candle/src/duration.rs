//! How long an op takes alone: as measured, else by what it moves and computes.

use crate::device::Device;
use crate::profile::Class;
use crate::trace::{Access, Launch, Op, Role, Trace, Work};

/// Microseconds that an op takes with the device to itself: measured where the trace says so, else modelled.
pub(crate) fn duration(trace: &Trace, op: &Op, class: Class, device: &Device) -> f64 {
    match op.nanos {
        Some(nanos) => nanos as f64 / 1e3,
        None => modelled(trace, op, class, device),
    }
}

/// Microseconds of any kernel, and of memory traffic or of arithmetic, whichever takes longer.
pub(crate) fn modelled(trace: &Trace, op: &Op, class: Class, device: &Device) -> f64 {
    let Demand { bytes, flops } = Demand::of(trace, op, class);
    let (share, threads) = match &op.work {
        Work::Kernel(launch) => concurrency(launch, device),
        Work::Memset(_) | Work::Memcpy(_) => (1., f64::INFINITY),
        Work::Host { .. } => (1. / f64::from(device.spec.processors.max(1)), f64::INFINITY),
    };
    // The kernels of libraries load ahead, and much at a time.
    let in_turn = match class {
        Class::Memory if !has(op, REDUCTIONS) => device.access_us * bytes / Precision::of(op).bytes() / threads,
        _ => 0.,
    };
    let memory = (bytes / (device.bandwidth_gbs * BYTES_PER_US)).max(in_turn);
    let arithmetic = flops / (Precision::of(op).tflops(device) * FLOPS_PER_US * device.efficiency * share);
    device.kernel_us + memory.max(arithmetic)
}

/// At one GB/s.
pub(crate) const BYTES_PER_US: f64 = 1e3;
/// At one TFLOP/s.
pub(crate) const FLOPS_PER_US: f64 = 1e6;

/// The share of the multiprocessors that a kernel's blocks reach, and the threads that are resident at a time.
fn concurrency(launch: &Launch, device: &Device) -> (f64, f64) {
    let processors = f64::from(device.spec.processors.max(1));
    let blocks = launch.blocks().max(1) as f64;
    let resident = blocks.min(processors * f64::from(device.resident_blocks(launch)));
    ((blocks / processors).min(1.), resident * f64::from(launch.threads().max(1)))
}

/// What an op asks of the device as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Demand {
    /// Bytes that it reads and writes.
    pub bytes: f64,
    /// Floating-point operations, a multiply-add counting as two.
    pub flops: f64,
}

/// How the names of kernels begin that read as many elements of a table as they write, wherever these are.
const GATHERS: &[&str] = &["is_", "gather_"];
/// Parts of the names of kernels that add up what the parts of a split product left.
const REDUCTIONS: &[&str] = &["splitKreduce", "split_k"];

/// Whether one of these is part of an op's name.
fn has(op: &Op, parts: &[&str]) -> bool {
    parts.iter().any(|part| op.name.contains(part))
}

impl Demand {
    /// By the accesses. What library kernels access are whole buffers, workspaces aside.
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
                if has(op, REDUCTIONS) {
                    return Self { bytes: 2. * written, flops: 0. };
                }
                if GATHERS.iter().any(|start| op.name.starts_with(start)) {
                    return Self { bytes: written + read.min(written), flops: 0. };
                }
                let flops = match class {
                    Class::Compute => product(sizes(false).collect(), sizes(true), Precision::of(op).bytes()),
                    Class::Memory => 0.,
                };
                Self { bytes: read + written, flops }
            }
        }
    }
}

/// Operations of a matrix product: twice the root of the product of its three sizes, M*K, K*N and M*N. That is low for
/// convolutions of large windows and high for batches of products.
fn product(mut read: Vec<f64>, written: impl Iterator<Item = f64>, element: f64) -> f64 {
    read.sort_by(|a, b| b.total_cmp(a));
    let (Some(written), [left, right, ..]) = (written.reduce(f64::max), &read[..]) else { return 0. };
    2. * (left / element * (right / element) * (written / element)).sqrt()
}

/// What a product is computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    Single,
    /// Single precision, rounded for tensor cores.
    Tensor,
    Half,
}

impl Precision {
    /// As the kernel's name tells.
    pub fn of(op: &Op) -> Self {
        const TENSOR: &[&str] = &["tf32", "s1688gemm", "s1688fprop", "tensorop_s1688"];
        const HALF: &[&str] = &["f16", "h16816", "s16816", "hsh", "hhh", "half", "hgemm", "h884", "h1688"];
        match () {
            () if has(op, TENSOR) => Precision::Tensor,
            () if has(op, HALF) => Precision::Half,
            () => Precision::Single,
        }
    }

    /// Bytes of an element.
    fn bytes(self) -> f64 {
        if self == Precision::Half {
            2.
        } else {
            4.
        }
    }

    /// A device's peak in TFLOP/s.
    pub fn tflops(self, device: &Device) -> f64 {
        match self {
            Precision::Single => device.fp32_tflops,
            Precision::Tensor => device.tf32_tflops,
            Precision::Half => device.fp16_tflops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Buffer, Mode, Region};

    fn trace(name: &str, accesses: &[(u64, Role, Mode)], nanos: Option<u64>) -> Trace {
        let launch = Launch { grid: [4096, 1, 1], block: [256, 1, 1], registers: 32, ..Default::default() };
        let access = |(buffer, &(bytes, _, mode)): (usize, &(u64, Role, Mode))| {
            let region = Region::contiguous(0, bytes);
            Access { buffer, region, mode }
        };
        let accesses_of = accesses.iter().enumerate().map(access).collect();
        let op = Op { name: name.into(), label: "".into(), work: Work::Kernel(launch), accesses: accesses_of, nanos };
        let buffers = accesses.iter().map(|&(bytes, role, _)| Buffer { bytes, role }).collect();
        Trace { ops: vec![op], buffers, ..Default::default() }
    }

    fn demand(name: &str, class: Class, accesses: &[(u64, Role, Mode)]) -> Demand {
        let trace = trace(name, accesses, None);
        Demand::of(&trace, &trace.ops[0], class)
    }

    #[test]
    fn sizes_tell_the_operations_of_a_product() {
        // 128 x 768 by 768 x 3072, with a bias and a workspace.
        let sizes = |element: u64| {
            [
                (128 * 768 * element, Role::Intermediate, Mode::Read),
                (768 * 3072 * element, Role::External, Mode::Read),
                (3072 * element, Role::External, Mode::Read),
                (128 * 3072 * element, Role::Intermediate, Mode::ReadWrite),
                (1 << 30, Role::Workspace, Mode::ReadWrite),
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
        let table = [(1 << 30, Role::External, Mode::Read), (1 << 10, Role::Intermediate, Mode::Write)];
        assert_eq!(demand("is_u32_f32", Class::Memory, &table), Demand { bytes: 2048., flops: 0. });
    }

    #[test]
    fn what_was_measured_is_not_modelled() {
        let device = Device::named("h200").unwrap();
        let bytes = 480_000_000;
        let of = |nanos| {
            let trace = trace("uexp_f32", &[(bytes, Role::Intermediate, Mode::ReadWrite)], nanos);
            duration(&trace, &trace.ops[0], Class::Memory, &device)
        };
        assert_eq!(of(Some(2500)), 2.5);
        assert!(of(None) >= device.kernel_us + bytes as f64 / device.bandwidth_gbs / BYTES_PER_US);
    }
}
