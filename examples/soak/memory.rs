//! Memory that the program takes, on the device and on the host, and how much it may grow.

use anyhow::Result;
use candle::Device;
use opara_candle::device_memory;
use serde::Serialize;

const MIB: u64 = 1 << 20;

/// What the second half of a run may add. The first half fills caches. Executors that stay have other shapes at hand in
/// the end than in the middle, and the allocator of the host keeps what threads have used at their peak.
const BOUNDS: Memory = Memory { pool: Some(16 * MIB), outside_pool: Some(64 * MIB), resident: Some(64 * MIB) };

/// Bytes. A count is missing where there is none: on the CPU, and of the host's memory elsewhere than on Linux.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    /// In use of the memory pool that candle allocates from.
    pub pool: Option<u64>,
    /// Of the device in use outside of the pool, those of other programs included: graphs, code, libraries' workspaces.
    pub outside_pool: Option<u64>,
    /// Of the host, resident.
    pub resident: Option<u64>,
}

impl Memory {
    /// What is taken now, after all work of the device is done.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn of(device: &Device) -> Result<Self> {
        let ((), usage) = device_memory::watch(device, || anyhow::Ok(()))?;
        let outside_pool = device.is_cuda().then(|| device_memory::used_outside_pool(device)).transpose()?;
        Ok(Self { pool: usage.map(|usage| usage.before), outside_pool, resident: resident() })
    }

    /// Its counts with their names.
    pub fn counts(&self) -> [(&'static str, Option<u64>); 3] {
        [("pool in use", self.pool), ("outside the pool", self.outside_pool), ("resident", self.resident)]
    }

    /// Counts that have grown since `before` beyond the bounds: name, growth and bound.
    pub fn grown_since(&self, before: &Memory) -> Vec<(&'static str, u64, u64)> {
        let counts = self.counts().into_iter().zip(before.counts()).zip(BOUNDS.counts());
        let grown = counts.filter_map(|(((name, after), (_, before)), (_, bound))| {
            Some((name, after?.saturating_sub(before?), bound?)).filter(|(_, grown, bound)| grown > bound)
        });
        grown.collect()
    }
}

/// Resident memory of this process.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
