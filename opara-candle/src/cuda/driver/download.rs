//! Copies of a tensor that are on their way to the host.

use candle::cuda_backend::{CudaStorage, WrapErr};
use candle::{Device, Storage, Tensor};
use cudarc::driver::PinnedHostSlice;

use super::kernels::store;
use super::{Event, Stream};
use crate::{Error, Result};

/// Page-locked memory for elements of u32, which the device writes while the host goes on.
pub(crate) struct Download {
    stream: Stream,
    host: PinnedHostSlice<u32>,
    /// When they are there.
    arrived: Event,
}

impl Download {
    /// For so many elements of a tensor on the device.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(device: &Device, elements: usize) -> Result<Self> {
        const CACHED: u32 = 0;
        let stream = Stream::of(device)?;
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        // SAFETY: nobody reads the elements before `enqueue` has had them written.
        let host = unsafe { context.alloc_pinned_with_flags::<u32>(elements.max(1), CACHED) }.w()?;
        Ok(Self { arrived: stream.event(false)?, stream, host })
    }

    /// Copies the elements of a contiguous tensor here, after all that its stream was given so far.
    ///
    /// # Errors
    /// Another dtype, more elements than there is room for, or a call of the driver that failed.
    pub fn enqueue(&mut self, tensor: &Tensor) -> Result<()> {
        let (storage, layout) = tensor.storage_and_layout();
        let range = layout.contiguous_offsets().filter(|(start, end)| end - start <= self.host.len());
        let (Storage::Cuda(CudaStorage { slice, device }), Some((start, end))) = (&*storage, range) else {
            return Err(Error::Internal { message: format!("a download of {:?}", layout) });
        };
        let candle::cuda_backend::CudaStorageSlice::U32(elements) = slice else {
            return Err(Error::Internal { message: format!("a download of {:?}", tensor.dtype()) });
        };
        if start < end {
            store(device, &elements.slice(start..end), &mut self.host)?;
        }
        self.stream.record(&self.arrived)
    }

    /// The first so many elements, once they are here.
    ///
    /// # Errors
    /// A call of the driver that failed, here or in what was enqueued before.
    pub fn wait(&self, elements: usize) -> Result<Vec<u32>> {
        self.arrived.wait()?;
        Ok(self.host.as_slice().w()?[..elements].to_vec())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The device may still write here; a failure concerns nobody any more.
        let _ = self.arrived.wait();
    }
}
