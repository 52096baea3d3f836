//! How much device memory a forward pass needs.
//!
//! candle allocates from the device's memory pool, in stream order. The pool counts the bytes in use, without those that
//! it holds ready, and keeps the highest count since that was reset. The peak of a pass is this high-water mark less the
//! count before the pass, so that weights and inputs, which are there anyway, drop out. The arena of the sequential
//! schedule stands next to it: eager cannot need less at its peak, but for the holes of that arena.
//!
//! What else the device has less is outside of the pool: nodes of CUDA graphs, code of kernels used for the first time,
//! handles and workspaces of cuBLAS and cuDNN. Other programs that use the device meanwhile would disturb this count.

use anyhow::Result;
use candle::Device;
use opara_candle::device_memory::{used_outside_pool, watch, Usage};
use serde::Serialize;

/// Bytes. A count is missing where the device has no pool.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    /// Peak of an eager forward pass, beyond weights and inputs.
    pub eager_peak: Option<u64>,
    /// Peak of a replay, with all that the executor keeps, beyond weights and inputs.
    pub replay_peak: Option<u64>,
    /// What the executor keeps in the pool: arena, constants, static inputs and outputs.
    pub executor: Option<u64>,
    /// Arena of the sequential schedule.
    pub sequential_arena: Option<u64>,
    /// What the model and eager passes took outside the pool.
    pub eager_outside: i64,
    /// What building the executor took there, and for comparison building the sequential one after it.
    pub executor_outside: i64,
    pub sequential_outside: i64,
    /// All of it: weights, inputs, the peak of a pass, and what is outside the pool.
    pub eager_total: Option<u64>,
    pub executor_total: Option<u64>,
}

/// What a piece of work takes of a device's memory.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Of the pool.
    pub pool: Option<Usage>,
    /// Outside the pool, and still after it.
    pub outside: i64,
}

/// Does some work and finds what it takes.
pub fn taken<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Taken)> {
    let before = used_outside_pool(device)? as i64;
    let (result, pool) = watch(device, f)?;
    Ok((result, Taken { pool, outside: used_outside_pool(device)? as i64 - before }))
}
