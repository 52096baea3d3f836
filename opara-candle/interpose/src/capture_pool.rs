//! Memory pools for allocations during captures.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemoryPool};
use cudarc::driver::CudaStream;
use parking_lot::Mutex;

use super::error::{check, Error};

/// A pool for one capture at a time. It holds its addresses until it is dropped, so two captures with two pools share no address, and
/// every pointer differs between them. A dropped pool is reused and never destroyed, since a module may keep a tensor from a
/// capture.
pub struct CapturePool {
    pool: Pool,
    stream: Arc<CudaStream>,
    work: CapturedWork,
}

/// What becomes of work that is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedWork {
    /// It is recorded and runs, too: tensors that a module keeps hold what it computed.
    Runs,
    /// The same, and older tensors that the module drops stay until the recorded calls are dropped.
    RunsAndHolds,
    /// It is recorded only: nothing is in the memory that it writes.
    IsRecorded,
}

#[derive(Clone, Copy)]
struct Pool {
    device: sys::CUdevice,
    raw: CUmemoryPool,
}

// SAFETY: the driver lets every thread use a pool.
unsafe impl Send for Pool {}

/// Unused pools.
static FREE: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

impl CapturePool {
    /// Takes a pool on the device of this stream, for captures of such work.
    ///
    /// # Errors
    /// No memory left.
    pub fn take(stream: &Arc<CudaStream>, work: CapturedWork) -> Result<Self, Error> {
        let device = stream.context().cu_device();
        let mut free = FREE.lock();
        let found = free.iter().position(|pool| pool.device == device).map(|at| free.swap_remove(at));
        drop(free);
        let pool = match found {
            Some(pool) => pool,
            None => Pool { device, raw: create(device)? },
        };
        Ok(Self { pool, stream: stream.clone(), work })
    }

    /// The pool.
    pub(crate) fn raw(&self) -> CUmemoryPool {
        self.pool.raw
    }

    /// Does work that is captured run, too?
    pub(crate) fn runs(&self) -> bool {
        self.work != CapturedWork::IsRecorded
    }

    /// Do older tensors that are dropped stay, and may the module keep new ones?
    pub fn holds(&self) -> bool {
        self.work == CapturedWork::RunsAndHolds
    }
}

impl Drop for CapturePool {
    fn drop(&mut self) {
        // Frees are ordered on the stream. The memory can be returned once the stream has executed them.
        let idle = self.stream.context().bind_to_thread().and_then(|()| self.stream.synchronize());
        if let Err(error) = idle {
            tracing::warn!(?error, "the memory of a capture is not given back yet");
        }
        // SAFETY: the pool exists; memory in use stays.
        unsafe { sys::cuMemPoolTrimTo(self.pool.raw, 0) };
        FREE.lock().push(self.pool);
    }
}

/// A pool that does not return freed memory to the driver by itself.
fn create(device: sys::CUdevice) -> Result<CUmemoryPool, Error> {
    // SAFETY: the structure is numbers, enumerations that have a variant 0, and pointers that may be null.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    let location = [sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32, device];
    const { assert!(size_of::<sys::CUmemLocation>() == size_of::<[i32; 2]>()) };
    // SAFETY: a location is a type and a number of 32 bits each; the number's name depends on the version of CUDA.
    unsafe { (&raw mut properties.location).cast::<[i32; 2]>().write(location) };
    let mut pool = std::ptr::null_mut();
    // SAFETY: the properties are whole; the call writes the pool.
    check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
    let mut most = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a u64, which `most` is.
    let keeps = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut most).cast()) };
    check("cuMemPoolSetAttribute", keeps).map(|()| pool).inspect_err(|_| {
        // SAFETY: nobody else has the pool.
        unsafe { sys::cuMemPoolDestroy(pool) };
    })
}
