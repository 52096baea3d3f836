//! Device models, from which durations are estimated and schedules simulated.

use crate::kernel_catalog::Precision;
use crate::trace::{DeviceSpec, Launch};

/// A device's published figures, and a few measured latencies.
///
/// Published figures come from NVIDIA's white papers and data sheets: Tesla V100 Architecture (WP-08608), Turing
/// Architecture (WP-09183) with the GA102 one for the RTX 2080 Super, A100 Tensor Core GPU Architecture, H100 Tensor
/// Core GPU Architecture, and the H200's data sheet. Throughput is dense, at boost clock. Blocks and shared memory per
/// multiprocessor come from the CUDA C++ Programming Guide, by compute capability.
///
/// The latencies were measured on an H200 and are used for all GPUs. The latency per edge comes from chains of CUDA
/// graph nodes, the latency per element from layer norms. The wait latency is fitted to the replays in
/// `tests/data/native-*.trace`; a value 20 % larger or smaller fits almost as well. The time per kernel and the
/// efficiency are assumed.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceModel {
    /// The name of the model, such as `h200`.
    pub name: String,
    /// The limits of the multiprocessors, or the cores of a CPU.
    pub spec: DeviceSpec,
    /// Resident blocks per multiprocessor.
    pub blocks_per_processor: u32,
    /// Bytes of shared memory that the driver reserves for every block.
    pub reserved_shared: u32,
    /// Memory bandwidth in GB/s.
    pub bandwidth_gbs: f64,
    /// Peak of single-precision arithmetic without tensor cores in TFLOP/s.
    pub fp32_tflops: f64,
    /// Peak of single-precision matmuls on tensor cores (TF32) in TFLOP/s; equal to `fp32_tflops` on devices without
    /// TF32.
    pub tf32_tflops: f64,
    /// Peak of half-precision matmuls in TFLOP/s.
    pub fp16_tflops: f64,
    /// Fraction of an arithmetic peak that library kernels reach on the multiprocessors that they occupy.
    pub efficiency: f64,
    /// Microseconds per element that a thread of a plain kernel reads or writes, one after the other.
    pub access_us: f64,
    /// Fixed microseconds per kernel in a chain, including its launch, in addition to its memory traffic or arithmetic.
    pub kernel_us: f64,
    /// Microseconds from the end of a CUDA graph node to the start of its successor if they do not form a chain: if the
    /// first has other successors, or the second other predecessors.
    pub wait_us: f64,
    /// Microseconds of delay of a node for each predecessor beyond the first.
    pub edge_us: f64,
    /// Kernels in flight at a time; for GPUs, the maximal resident grids of the CUDA C++ Programming Guide.
    pub queues: usize,
}

/// The number of resources of a multiprocessor: threads, registers, bytes of shared memory, and block slots.
pub(crate) const RESOURCES: usize = 4;

/// An alias for `a100-sxm`.
const A100: &str = "a100";

/// The name of a device without a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`: use one of {known}", known = DeviceModel::names().join(", "))]
pub struct UnknownDevice(String);

impl DeviceModel {
    /// All device models, oldest first.
    pub fn all() -> [DeviceModel; 6] {
        [v100(), rtx_2080_super(), a100("a100-pcie"), a100("a100-sxm"), h100(), h200()]
    }

    /// The names of all devices, and the alias `a100` for `a100-sxm`.
    pub fn names() -> Vec<String> {
        DeviceModel::all().map(|device| device.name).into_iter().chain([A100.into()]).collect()
    }

    /// Finds the device all of whose name parts, such as `a100` and `sxm`, occur in `name`, ignoring case.
    ///
    /// # Errors
    /// [`UnknownDevice`], which lists the known names.
    pub fn named(name: &str) -> Result<DeviceModel, UnknownDevice> {
        let lower = name.to_lowercase();
        if lower == A100 {
            return Ok(a100("a100-sxm"));
        }
        let fits = |device: &DeviceModel| device.name.split('-').all(|part| lower.contains(part));
        DeviceModel::all().into_iter().find(fits).ok_or_else(|| UnknownDevice(name.into()))
    }

    /// The model of the device that a trace was recorded on: the model that matches the driver's name, else an estimate
    /// from the device's limits.
    pub fn of(spec: &DeviceSpec) -> DeviceModel {
        let described = DeviceModel::named(&spec.name).unwrap_or_else(|_| match spec.threads_per_processor {
            0 => cpu(spec),
            _ => unknown(spec),
        });
        DeviceModel { spec: spec.clone(), ..described }
    }

    /// The number of blocks of a kernel that fit on one multiprocessor, as computed by the driver's occupancy
    /// calculator. At least 1.
    pub fn resident_blocks(&self, launch: &Launch) -> u32 {
        let (needs, has) = (self.block(launch), self.processor());
        needs.iter().zip(has).map(|(&needs, has)| has / needs.max(1)).min().unwrap_or(1)
    }

    /// Peak of matmuls in this precision in TFLOP/s.
    pub fn tflops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Single => self.fp32_tflops,
            Precision::Tensor => self.tf32_tflops,
            Precision::Half => self.fp16_tflops,
        }
    }

    /// The resources of one multiprocessor.
    pub(crate) fn processor(&self) -> [u32; RESOURCES] {
        let DeviceSpec { threads_per_processor, registers_per_processor, shared_memory_per_processor, .. } = self.spec;
        [threads_per_processor, registers_per_processor, shared_memory_per_processor, self.blocks_per_processor]
            .map(|has| has.max(1))
    }

    /// The resources that a block takes, limited to the multiprocessor's.
    pub(crate) fn block(&self, launch: &Launch) -> [u32; RESOURCES] {
        const WARP: u32 = 32;
        /// Registers are allocated per warp in this granularity. Each quarter of a multiprocessor has its own register
        /// file.
        const REGISTERS: u32 = 256;
        const QUARTERS: u32 = 4;
        const SHARED: u32 = 128;
        let warps = launch.threads().div_ceil(WARP).max(1);
        let of_warp = (launch.registers.saturating_mul(WARP)).next_multiple_of(REGISTERS).max(1);
        // The remainder of each quarter's registers is unusable.
        let warps_that_fit = self.spec.registers_per_processor / QUARTERS / of_warp * QUARTERS;
        let registers = match warps_that_fit / warps {
            0 => self.spec.registers_per_processor,
            blocks => self.spec.registers_per_processor / blocks,
        };
        let shared = (launch.shared().saturating_add(self.reserved_shared)).next_multiple_of(SHARED);
        let mut needs = [warps.saturating_mul(WARP), registers, shared, 1];
        needs.iter_mut().zip(self.processor()).for_each(|(needs, has)| *needs = (*needs).min(has));
        needs
    }
}

fn spec(name: &str, processors: u32, threads: u32, shared_kib: u32) -> DeviceSpec {
    DeviceSpec {
        name: name.into(),
        processors,
        threads_per_processor: threads,
        registers_per_processor: 65_536,
        shared_memory_per_processor: shared_kib << 10,
    }
}

fn h200() -> DeviceModel {
    DeviceModel {
        name: "h200".into(),
        spec: spec("NVIDIA H200", 132, 2048, 228),
        blocks_per_processor: 32,
        reserved_shared: 1024,
        bandwidth_gbs: 4800.,
        fp32_tflops: 66.9,
        tf32_tflops: 494.7,
        fp16_tflops: 989.4,
        efficiency: 0.5,
        access_us: 0.18,
        kernel_us: 2.5,
        wait_us: 1.0,
        edge_us: 0.4,
        queues: 128,
    }
}

fn h100() -> DeviceModel {
    let spec = spec("NVIDIA H100 80GB HBM3", 132, 2048, 228);
    DeviceModel { name: "h100".into(), spec, bandwidth_gbs: 3352., ..h200() }
}

/// The 40 GB models, which have the same figures.
fn a100(name: &str) -> DeviceModel {
    let driver = if name == "a100-sxm" { "NVIDIA A100-SXM4-40GB" } else { "NVIDIA A100-PCIE-40GB" };
    DeviceModel {
        name: name.into(),
        spec: spec(driver, 108, 2048, 164),
        bandwidth_gbs: 1555.,
        fp32_tflops: 19.5,
        tf32_tflops: 156.,
        fp16_tflops: 312.,
        ..h200()
    }
}

fn rtx_2080_super() -> DeviceModel {
    DeviceModel {
        name: "rtx-2080-super".into(),
        spec: spec("NVIDIA GeForce RTX 2080 SUPER", 48, 1024, 64),
        blocks_per_processor: 16,
        reserved_shared: 0,
        bandwidth_gbs: 496.,
        fp32_tflops: 11.2,
        tf32_tflops: 11.2,
        fp16_tflops: 44.6,
        ..h200()
    }
}

fn v100() -> DeviceModel {
    DeviceModel {
        name: "v100".into(),
        spec: spec("Tesla V100-SXM2-16GB", 80, 2048, 96),
        reserved_shared: 0,
        bandwidth_gbs: 900.,
        fp32_tflops: 15.7,
        tf32_tflops: 15.7,
        fp16_tflops: 125.,
        ..h200()
    }
}

/// Estimates a GPU without a model as an A100 scaled by the number of multiprocessors.
fn unknown(spec: &DeviceSpec) -> DeviceModel {
    let a100 = a100("a100-pcie");
    let size = f64::from(spec.processors.max(1)) / f64::from(a100.spec.processors);
    DeviceModel {
        name: spec.name.clone(),
        bandwidth_gbs: a100.bandwidth_gbs * size,
        fp32_tflops: a100.fp32_tflops * size,
        tf32_tflops: a100.tf32_tflops * size,
        fp16_tflops: a100.fp16_tflops * size,
        ..a100
    }
}

/// Estimates a CPU from its number of cores, the only property in a trace. An operator uses one core. Assumes two
/// 8-lane multiply-adds per cycle at 3 GHz, and one channel of DDR4-3200 per two cores.
fn cpu(spec: &DeviceSpec) -> DeviceModel {
    let cores = f64::from(spec.processors.max(1));
    DeviceModel {
        name: spec.name.clone(),
        blocks_per_processor: 1,
        reserved_shared: 0,
        bandwidth_gbs: 12.8 * cores,
        fp32_tflops: 0.096 * cores,
        tf32_tflops: 0.096 * cores,
        fp16_tflops: 0.096 * cores,
        ..h200()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_lead_to_descriptions() {
        for (driver, name) in [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-40GB", "a100-sxm"),
            ("NVIDIA A100-PCIE-40GB", "a100-pcie"),
            ("Tesla V100-SXM2-16GB", "v100"),
            ("NVIDIA GeForce RTX 2080 SUPER", "rtx-2080-super"),
        ] {
            assert_eq!(DeviceModel::of(&DeviceSpec { name: driver.into(), ..Default::default() }).name, name);
        }
        assert!(DeviceModel::all().iter().all(|device| DeviceModel::named(&device.name).as_ref() == Ok(device)));
        assert_eq!(DeviceModel::named("A100"), DeviceModel::named("a100-sxm"));
        let unknown = DeviceModel::named("tpu").unwrap_err().to_string();
        assert!(DeviceModel::names().iter().all(|name| unknown.contains(name)), "{unknown}");
    }

    #[test]
    fn others_follow_from_their_limits() {
        let laptop = DeviceModel::of(&spec("NVIDIA RTX 500", 54, 1536, 100));
        assert_eq!((laptop.bandwidth_gbs, laptop.spec.threads_per_processor), (1555. / 2., 1536));
        let cpu = DeviceModel::of(&DeviceSpec { name: "cpu".into(), processors: 2, ..Default::default() });
        assert_eq!((cpu.bandwidth_gbs, cpu.spec.processors), (25.6, 2));
    }
}
