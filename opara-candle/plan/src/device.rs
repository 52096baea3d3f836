//! DeviceModel models: the figures from which durations are estimated and schedules simulated.

use crate::kernel_catalog::Precision;
use crate::trace::{DeviceSpec, Launch};

/// A device's published figures, and a few measured latencies.
///
/// Published figures are those of NVIDIA's white papers and data sheets: Tesla V100 Architecture (WP-08608), Turing
/// Architecture (WP-09183) with the GA102 one for the RTX 2080 Super, A100 Tensor Core GPU Architecture, H100 Tensor
/// Core GPU Architecture, and the H200's data sheet; dense throughput, at boost clock. Blocks and shared memory of a
/// multiprocessor are those of the CUDA C++ Programming Guide, by compute capability.
///
/// The latencies are those of an H200 and stand for the other GPUs too: that of edges comes from chains of a CUDA
/// graph's nodes, that of elements from layer norms. That of waits is fitted to the replays that
/// `tests/data/native-*.trace` hold; a fifth more or less agrees with them almost as well. The time of a kernel and the
/// efficiency are assumed.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceModel {
    /// Its name here, such as `h200`.
    pub name: String,
    /// The limits of its multiprocessors, or the cores of a CPU.
    pub spec: DeviceSpec,
    /// Resident blocks of one multiprocessor.
    pub blocks_per_processor: u32,
    /// Bytes of shared memory that the driver adds to every block's.
    pub reserved_shared: u32,
    /// Bandwidth of the device's memory in GB/s.
    pub bandwidth_gbs: f64,
    /// Peak of single-precision arithmetic outside tensor cores in TFLOP/s.
    pub fp32_tflops: f64,
    /// Peak of single-precision matmuls on tensor cores (TF32) in TFLOP/s; that of `fp32_tflops` without them.
    pub tf32_tflops: f64,
    /// Peak of half-precision matmuls in TFLOP/s.
    pub fp16_tflops: f64,
    /// Share of an arithmetic peak that library kernels reach on the multiprocessors that they fill.
    pub efficiency: f64,
    /// Microseconds that a thread of a plain kernel takes to read or write one element after the other.
    pub access_us: f64,
    /// Microseconds that a kernel takes in a chain of them beside its traffic or arithmetic, its launch included.
    pub kernel_us: f64,
    /// Microseconds from the end of a node of a CUDA graph to the start of one that waits for it where they are no
    /// chain: where the first has other successors, or the second other predecessors.
    pub wait_us: f64,
    /// Microseconds that a node starts later for each predecessor beyond its first.
    pub edge_us: f64,
    /// Kernels that are in flight at a time; of GPUs, the resident grids of the CUDA C++ Programming Guide.
    pub queues: usize,
}

/// The number of resources of a multiprocessor: threads, registers, bytes of shared memory, and block slots.
pub(crate) const RESOURCES: usize = 4;

/// What is said where it does not matter which A100.
const A100: &str = "a100";

/// The name of a device that has no description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`: use one of {known}", known = DeviceModel::names().join(", "))]
pub struct UnknownDevice(String);

impl DeviceModel {
    /// Every device that has a description, oldest first.
    pub fn all() -> [DeviceModel; 6] {
        [v100(), rtx_2080_super(), a100("a100-pcie"), a100("a100-sxm"), h100(), h200()]
    }

    /// The name of every device, and `a100`, which stands for `a100-sxm`.
    pub fn names() -> Vec<String> {
        DeviceModel::all().map(|device| device.name).into_iter().chain([A100.into()]).collect()
    }

    /// The device of this name; letter case and what stands around the name do not matter.
    ///
    /// # Errors
    /// [`UnknownDevice`], which lists those that there are.
    pub fn named(name: &str) -> Result<DeviceModel, UnknownDevice> {
        let lower = name.to_lowercase();
        if lower == A100 {
            return Ok(a100("a100-sxm"));
        }
        let fits = |device: &DeviceModel| device.name.split('-').all(|part| lower.contains(part));
        DeviceModel::all().into_iter().find(fits).ok_or_else(|| UnknownDevice(name.into()))
    }

    /// The device that a trace was recorded on: the description that fits the driver's name for it, else one from its
    /// limits alone.
    pub fn of(spec: &DeviceSpec) -> DeviceModel {
        let described = DeviceModel::named(&spec.name).unwrap_or_else(|_| match spec.threads_per_processor {
            0 => cpu(spec),
            _ => unknown(spec),
        });
        DeviceModel { spec: spec.clone(), ..described }
    }

    /// How many blocks of a kernel fit on one multiprocessor at a time: what the driver's occupancy calculator says. At
    /// least 1.
    pub fn resident_blocks(&self, launch: &Launch) -> u32 {
        let (needs, has) = (self.block(launch), self.processor());
        needs.iter().zip(has).map(|(&needs, has)| has / needs.max(1)).min().unwrap_or(1)
    }

    /// Peak of matmuls of this precision in TFLOP/s.
    pub fn tflops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Single => self.fp32_tflops,
            Precision::Tensor => self.tf32_tflops,
            Precision::Half => self.fp16_tflops,
        }
    }

    /// What one multiprocessor has.
    pub(crate) fn processor(&self) -> [u32; RESOURCES] {
        let DeviceSpec { threads_per_processor, registers_per_processor, shared_memory_per_processor, .. } = self.spec;
        [threads_per_processor, registers_per_processor, shared_memory_per_processor, self.blocks_per_processor]
            .map(|has| has.max(1))
    }

    /// What of that a block takes; never more than there is.
    pub(crate) fn block(&self, launch: &Launch) -> [u32; RESOURCES] {
        const WARP: u32 = 32;
        /// Registers are given to a warp in these portions, and by four quarters of a multiprocessor, each its own.
        const REGISTERS: u32 = 256;
        const QUARTERS: u32 = 4;
        const SHARED: u32 = 128;
        let warps = launch.threads().div_ceil(WARP).max(1);
        let of_warp = (launch.registers.saturating_mul(WARP)).next_multiple_of(REGISTERS).max(1);
        // What is left over in a quarter is lost.
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

/// The 40 GB models; both have the same figures.
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

/// A GPU without a description: an A100 of as many multiprocessors.
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

/// A CPU, of which a trace tells no more than the cores: an operator takes one of them. Two 8-lane multiply-adds a cycle
/// of 3 GHz, and one channel of DDR4-3200 for two cores, are assumed.
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
