//! The stream of a candle device: memory counters, timing.

use std::sync::Arc;

use candle::{CudaDevice, Device};
use cudarc::driver::{sys, CudaContext, CudaStream};

use super::{check, wrap};
use crate::trace::DeviceSpec;
use crate::{Error, Result};

/// The driver's handle of the per-thread default stream.
const PER_THREAD: usize = 2;

/// Identifies a stream of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct StreamId(usize, usize);

/// The stream that a candle device launches on.
#[derive(Clone)]
pub(in crate::cuda) struct Stream(Arc<CudaStream>);

impl Stream {
    /// # Errors
    /// A device that is not CUDA.
    pub fn of(device: &Device) -> Result<Self> {
        Ok(Self(cuda(device)?.cuda_stream()))
    }

    fn context(&self) -> &Arc<CudaContext> {
        self.0.context()
    }

    /// Makes the device's context current on this thread.
    pub fn bind(&self) -> Result<()> {
        self.context().bind_to_thread().map_err(wrap("cuCtxSetCurrent"))
    }

    /// The same for destructors, which cannot return an error: was it successful? An error that cudarc has stored for
    /// its next call stays stored.
    pub(super) fn make_current(&self) -> bool {
        // SAFETY: the context lives as long as the stream.
        let status = unsafe { sys::cuCtxSetCurrent(self.context().cu_ctx()) };
        status == sys::CUresult::CUDA_SUCCESS
    }

    /// For destructors: waits for everything that all threads have launched on this stream so far. Fails if the device
    /// is lost, where nothing runs any more, or during a capture.
    pub(super) fn wait_to_drop(&self) {
        // SAFETY: the stream exists, and the callers have made its context current.
        unsafe {
            if self.is_per_thread() {
                sys::cuCtxSynchronize();
            } else {
                sys::cuStreamSynchronize(self.raw());
            }
        }
    }

    /// Identifies this stream.
    pub fn id(&self) -> StreamId {
        StreamId(self.context().ordinal(), self.0.cu_stream() as usize)
    }

    /// Does each host thread have a stream of its own behind this handle?
    pub fn is_per_thread(&self) -> bool {
        self.0.cu_stream() as usize == PER_THREAD
    }

    /// Is this the legacy default stream, which cannot be captured?
    pub fn is_legacy(&self) -> bool {
        self.0.cu_stream().is_null()
    }

    /// Waits for everything that all threads have launched on this stream so far.
    pub fn wait_for_all(&self) -> Result<()> {
        if self.is_per_thread() {
            self.synchronize_device()
        } else {
            self.synchronize()
        }
    }

    /// Waits for everything launched on this stream; by this thread only, if every thread has a stream of its own.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize().map_err(wrap("cuStreamSynchronize"))
    }

    /// Waits for all work of the device. Waits for captures on other threads to end first.
    pub fn synchronize_device(&self) -> Result<()> {
        self.context().synchronize().map_err(wrap("cuCtxSynchronize"))
    }

    /// The CUDA version that the driver supports: 13000 for 13.0.
    pub fn driver_version(&self) -> Result<i32> {
        // SAFETY: the call writes the number.
        unsafe { super::get("cuDriverGetVersion", |version| sys::cuDriverGetVersion(version)) }
    }

    /// Free memory of the device in bytes.
    pub fn free_memory(&self) -> Result<usize> {
        self.context().mem_get_info().map(|(free, _)| free).map_err(wrap("cuMemGetInfo"))
    }

    /// Bytes of device memory in use outside the memory pool.
    pub fn used_outside_pool(&self) -> Result<u64> {
        let (free, total) = self.context().mem_get_info().map_err(wrap("cuMemGetInfo"))?;
        let pool = self.pool_counter(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        Ok((total as u64).saturating_sub(free as u64 + pool))
    }

    /// Bytes of the memory pool in use.
    pub fn pool_in_use(&self) -> Result<u64> {
        self.pool_counter(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// The largest number of bytes of the memory pool in use since the last reset.
    pub fn pool_peak(&self) -> Result<u64> {
        self.pool_counter(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    }

    /// Resets that peak.
    pub fn reset_pool_peak(&self) -> Result<()> {
        let mut zero = 0u64;
        let mark = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        // SAFETY: the attribute is a u64, like `zero`, and 0 is the only value that the driver accepts for it.
        check("cuMemPoolSetAttribute", unsafe {
            sys::cuMemPoolSetAttribute(self.pool()?, mark, (&raw mut zero).cast())
        })
    }

    fn pool_counter(&self, counter: sys::CUmemPool_attribute) -> Result<u64> {
        let mut value = 0u64;
        // SAFETY: the counters that the callers ask for are u64, like `value`.
        check("cuMemPoolGetAttribute", unsafe {
            sys::cuMemPoolGetAttribute(self.pool()?, counter, (&raw mut value).cast())
        })?;
        Ok(value)
    }

    fn pool(&self) -> Result<sys::CUmemoryPool> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the context belongs to this device; `pool` receives its current pool.
        check("cuDeviceGetMemPool", unsafe { sys::cuDeviceGetMemPool(&mut pool, self.context().cu_device()) })?;
        Ok(pool)
    }

    /// Records an event after the work launched so far.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.0.record(&self.0).map_err(wrap("cuEventRecord"))
    }

    /// Makes later work wait for the event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.0.wait(&event.0).map_err(wrap("cuStreamWaitEvent"))
    }

    /// Makes work launched on `next` from now on wait for this stream's work so far. If the driver refuses that, waits
    /// on the host.
    pub fn then(&self, next: &Stream) -> Result<()> {
        let noted = self.event(false).and_then(|event| {
            self.record(&event)?;
            next.wait(&event)
        });
        noted.or_else(|_| self.wait_for_all())
    }

    /// Records the end of this stream's work so far in `event`, which is created if there is none. If the driver
    /// refuses that, waits on the host, and leaves no event.
    pub fn note(&self, event: &mut Option<Event>) -> Result<()> {
        let noted = event.take().map_or_else(|| self.event(false), Ok).and_then(|event| {
            self.record(&event)?;
            Ok(event)
        });
        match noted {
            Ok(noted) => {
                *event = Some(noted);
                Ok(())
            }
            Err(_) => self.wait_for_all(),
        }
    }

    /// Another stream of its device.
    pub fn beside(&self) -> Result<Self> {
        self.context().new_stream().map(Self).map_err(wrap("cuStreamCreate"))
    }

    /// A new event; with `timed`, times between events can be measured.
    pub fn event(&self, timed: bool) -> Result<Event> {
        let flags = timed.then_some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.context().new_event(flags).map(Event).map_err(wrap("cuEventCreate"))
    }

    /// The device's limits.
    pub fn device_spec(&self) -> Result<DeviceSpec> {
        use sys::CUdevice_attribute::*;
        let get =
            |attribute| self.context().attribute(attribute).map(|v| v as u32).map_err(wrap("cuDeviceGetAttribute"));
        Ok(DeviceSpec {
            name: self.context().name().map_err(wrap("cuDeviceGetName"))?,
            processors: get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            threads_per_processor: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            registers_per_processor: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            shared_memory_per_processor: get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        })
    }

    /// Is this thread capturing on this stream?
    pub fn is_capturing(&self) -> Result<bool> {
        let status = self.0.capture_status().map_err(wrap("cuStreamIsCapturing"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The stream for calls that take cudarc's.
    pub(super) fn cudarc(&self) -> &Arc<CudaStream> {
        &self.0
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.0.cu_stream()
    }
}

/// A point in a stream's work.
pub(in crate::cuda) struct Event(cudarc::driver::CudaEvent);

impl Event {
    /// Microseconds from this event to a later one, after both have happened.
    pub fn elapsed_us(&self, end: &Event) -> Result<f64> {
        self.0.elapsed_ms(&end.0).map(|ms| ms as f64 * 1e3).map_err(wrap("cuEventElapsedTime"))
    }

    /// Waits on the host until it has happened.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(wrap("cuEventSynchronize"))
    }

    /// Lets work that is given to a stream from now on wait for this event. Should the driver refuse that, waits here.
    pub(super) fn delay(&self, stream: sys::CUstream) {
        // SAFETY: the event exists; a stream that does not is refused.
        let status = unsafe { sys::cuStreamWaitEvent(stream, self.0.cu_event(), 0) };
        if status != sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the event exists. If this fails too, the device is lost, and nothing runs on it.
            unsafe { sys::cuEventSynchronize(self.0.cu_event()) };
        }
    }
}

fn cuda(device: &Device) -> Result<&CudaDevice> {
    match device {
        Device::Cuda(device) => Ok(device),
        _ => Err(Error::NotCapturable { reason: "the tensors are not on a CUDA device".into() }),
    }
}
