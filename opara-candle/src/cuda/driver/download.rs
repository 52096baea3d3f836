//! Asynchronous copies of a tensor to the host.

use candle::cuda_backend::{CudaStorage, WrapErr};
use candle::{Device, Storage, Tensor};
use cudarc::driver::PinnedHostSlice;

use super::kernels::{store, Word};
use super::{Event, Stream};
use crate::{Error, Result};

/// Page-locked memory for elements, which the device writes asynchronously.
pub(crate) struct Download<T: Word> {
    stream: Stream,
    host: PinnedHostSlice<T>,
    /// Recorded after the copy.
    arrived: Event,
}

impl<T: Word> Download<T> {
    /// Allocates memory for `elements` elements.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(device: &Device, elements: usize) -> Result<Self> {
        const CACHED: u32 = 0;
        let stream = Stream::of(device)?;
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        // SAFETY: the elements are not read before a copy that `enqueue` enqueued has written them.
        let host = unsafe { context.alloc_pinned_with_flags::<T>(elements.max(1), CACHED) }.w()?;
        Ok(Self { arrived: stream.event(false)?, stream, host })
    }

    /// Elements that there is room for.
    pub fn room(&self) -> usize {
        self.host.len()
    }

    /// Enqueues a copy of a contiguous tensor's elements on its stream.
    ///
    /// # Errors
    /// Another dtype, more elements than there is room for, or a call of the driver that failed.
    pub fn enqueue(&mut self, tensor: &Tensor) -> Result<()> {
        let (storage, layout) = tensor.storage_and_layout();
        let range = layout.contiguous_offsets().filter(|(start, end)| end - start <= self.host.len());
        let (Storage::Cuda(CudaStorage { slice, device }), Some((start, end))) = (&*storage, range) else {
            return Err(Error::Internal { message: format!("a download of {:?}", layout) });
        };
        let Some(elements) = T::of(slice) else {
            return Err(Error::Internal { message: format!("a download of {:?}", tensor.dtype()) });
        };
        if start < end {
            store(device, &elements.slice(start..end), &mut self.host)?;
        }
        // Without the event, nobody could wait for the kernel that writes here.
        self.stream.record(&self.arrived).or_else(|error| self.stream.wait_for_all().and(Err(error)))
    }

    /// Waits for the copy, and returns the first `elements` elements.
    ///
    /// # Errors
    /// A failed driver call, also one that an earlier operation of the stream caused.
    pub fn wait(&self, elements: usize) -> Result<Vec<T>> {
        self.arrived.wait()?;
        Ok(self.host.as_slice().w()?[..elements].to_vec())
    }
}

impl<T: Word> Drop for Download<T> {
    fn drop(&mut self) {
        // The device may still write here; a failure concerns nobody any more.
        let _ = self.arrived.wait();
    }
}
