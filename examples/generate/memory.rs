//! Memory of a generation.

use anyhow::Result;
use candle::Device;

/// Describes the free memory of a GPU, or the peak memory of the process on the CPU.
pub fn used(device: &Device) -> Result<String> {
    const MIB: f64 = (1u64 << 20) as f64;
    if device.is_cuda() {
        return Ok(format!("{:.0} MiB of the GPU are free", opara_candle::free_memory(device)? as f64 / MIB));
    }
    let told = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = told.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim);
    Ok(most.map_or("unknown".into(), |most| format!("{most} at most")))
}
