//! How much device memory a forward pass needs.
//!
//! candle allocates from the device's memory pool, in stream order. The pool counts the bytes in use, without those that
//! it holds ready, and keeps the highest count since that was reset. The peak of a pass is this high-water mark less the
//! count before the pass, so that weights and inputs, which are there anyway, drop out. The arena of the sequential
//! schedule stands next to it: eager cannot need less at its peak, but for the holes of that arena.
//!
//! [`free_memory`](opara_candle::timing::free_memory) cannot see such a peak: it waits for the device, and by then the
//! pool has given back what the pass no longer used. It does see what the pool does not count: nodes of a CUDA graph,
//! code of kernels used for the first time, handles and workspaces of cuBLAS and cuDNN. What it falls by while an
//! executor is built, less what the pool counts, is that; the first executor of a process pays for the handles.

use anyhow::Result;
use candle::Device;
use opara_candle::timing::free_memory;
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

/// The pool's bytes in use before, at most during, and after some work.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub before: u64,
    pub peak: u64,
    pub after: u64,
}

/// Does some work, and watches the pool. What `f` returns is still alive at the last look.
pub fn watch<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Option<Usage>)> {
    device.synchronize()?;
    let before = pool::in_use();
    pool::reset_peak();
    let result = f()?;
    device.synchronize()?;
    let usage = before.zip(pool::peak()).zip(pool::in_use());
    // Work that allocates nothing leaves the peak at 0.
    let usage = usage.map(|((before, peak), after)| Usage { before, peak: peak.max(before).max(after), after });
    Ok((result, usage))
}

/// As [`watch`], for building an executor; also the bytes that it took outside the pool.
pub fn watch_build<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Option<Usage>, i64)> {
    let free_before = free_memory(device)? as i64;
    let (result, usage) = watch(device, f)?;
    let taken = free_before - free_memory(device)? as i64;
    Ok((result, usage, taken - usage.map_or(0, |u| u.after as i64 - u.before as i64)))
}

/// Counters of the pool of GPU 0.
#[cfg(feature = "cuda")]
mod pool {
    use candle::cuda::cudarc::driver::{result, sys};
    use sys::CUmemPool_attribute as Attribute;

    pub fn in_use() -> Option<u64> {
        get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    pub fn peak() -> Option<u64> {
        get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    }

    /// Starts looking for a new peak.
    pub fn reset_peak() {
        let mut zero = 0u64;
        if let Some(pool) = pool() {
            // SAFETY: the attribute is a u64, which `zero` is, and 0 is the one value that the driver takes for it.
            let status = unsafe {
                sys::cuMemPoolSetAttribute(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast())
            };
            debug_assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        }
    }

    fn get(attribute: Attribute) -> Option<u64> {
        let (pool, mut value) = (pool()?, 0u64);
        // SAFETY: both attributes asked for are a u64, which `value` is.
        let status = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) };
        (status == sys::CUresult::CUDA_SUCCESS).then_some(value)
    }

    fn pool() -> Option<sys::CUmemoryPool> {
        let device = result::device::get(0).ok()?;
        // SAFETY: the driver has just named this device.
        unsafe { result::device::get_mem_pool(device) }.ok()
    }
}

#[cfg(not(feature = "cuda"))]
mod pool {
    pub fn in_use() -> Option<u64> {
        None
    }

    pub fn peak() -> Option<u64> {
        None
    }

    pub fn reset_peak() {}
}
