//! How much device memory a forward pass needs.
//!
//! candle allocates from the device's memory pool, in stream order. The pool counts the bytes in use, without those that
//! it holds ready, and keeps the highest count since that was reset. The peak of a pass is this high-water mark less the
//! count before the pass, so that weights and inputs, which are there anyway, drop out. The arena of the sequential
//! schedule stands next to it: eager cannot need less at its peak, but for the holes of that arena.
//!
//! [`free_memory`](opara_candle::device_memory::free_memory) cannot see such a peak: it waits for the device, and by then the
//! pool has given back what the pass no longer used. It does see what the pool does not count: nodes of a CUDA graph,
//! code of kernels used for the first time, handles and workspaces of cuBLAS and cuDNN. What it falls by while an
//! executor is built, less what the pool counts, is that; the first executor of a process pays for the handles.

use anyhow::Result;
use candle::Device;
use opara_candle::device_memory::{free_memory, watch, Usage};
use serde::Serialize;

/// Bytes beyond weights and inputs. A count is missing where the device has no pool.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    /// Peak of an eager forward pass.
    pub eager_peak: Option<u64>,
    /// Peak of a replay, with all that the executor keeps.
    pub replay_peak: Option<u64>,
    /// What the executor keeps in the pool: arena, constants, static inputs and outputs.
    pub executor: Option<u64>,
    /// What building the executor took outside the pool.
    pub driver: i64,
    /// Arena of the sequential schedule.
    pub sequential_arena: Option<u64>,
}

/// As [`watch`], for building an executor; also the bytes that it took outside the pool.
pub fn watch_build<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Option<Usage>, i64)> {
    let free_before = free_memory(device)? as i64;
    let (result, usage) = watch(device, f)?;
    let taken = free_before - free_memory(device)? as i64;
    Ok((result, usage, taken - usage.map_or(0, |u| u.after as i64 - u.before as i64)))
}
