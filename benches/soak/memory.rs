//! Memory use of the program, on the device and on the host, and how much it may grow.

use anyhow::Result;
use candle::Device;
use opara_candle::device_memory;
use serde::Serialize;

const MIB: u64 = 1 << 20;

/// The maximal growth during the second half of a run. The first half fills caches. Long-lived executors cache other
/// shapes at the end than in the middle, and the host's allocator keeps the memory that threads used at their peak.
const BOUNDS: Memory = Memory { pool: Some(16 * MIB), outside_pool: Some(64 * MIB), resident: Some(64 * MIB) };

/// Bytes. A count is `None` where it cannot be measured: device memory on the CPU, host memory on systems other than
/// Linux.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    /// In use in the memory pool that candle allocates from.
    pub pool: Option<u64>,
    /// In use on the device outside the pool: graphs, code, library workspaces, and the memory of other programs.
    pub outside_pool: Option<u64>,
    /// Resident memory on the host.
    pub resident: Option<u64>,
}

impl Memory {
    /// Measures the current use, after all work of the device is done.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn of(device: &Device) -> Result<Self> {
        let ((), usage) = device_memory::watch(device, || anyhow::Ok(()))?;
        let outside_pool = device.is_cuda().then(|| device_memory::used_outside_pool(device)).transpose()?;
        Ok(Self { pool: usage.map(|usage| usage.before), outside_pool, resident: resident() })
    }

    /// Lists the counts with their names.
    pub fn counts(&self) -> [(&'static str, Option<u64>); 3] {
        [("pool in use", self.pool), ("outside the pool", self.outside_pool), ("resident", self.resident)]
    }

    /// Lists the counts that have grown since `before` beyond the bounds: name, growth and bound.
    pub fn grown_since(&self, before: &Memory) -> Vec<(&'static str, u64, u64)> {
        let counts = self.counts().into_iter().zip(before.counts()).zip(BOUNDS.counts());
        let grown = counts.filter_map(|(((name, after), (_, before)), (_, bound))| {
            Some((name, after?.saturating_sub(before?), bound?)).filter(|(_, grown, bound)| grown > bound)
        });
        grown.collect()
    }
}

/// Reads the resident memory of this process.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
