//! Batches that are copied to the device beside its work.

use candle::{Device, Tensor};
use cudarc::driver::{sys, PinnedHostSlice};
use safetensors::View;

use super::memory::bytes_of;
use super::{address_of, check, Event, Stream};
use crate::cuda::driver::wrap;
use crate::{Error, Result};

/// Page-locked memory and device memory of a batch, and a stream that copies from one to the other.
pub(crate) struct Upload {
    /// The stream of the device's work.
    work: Stream,
    copies: Stream,
    host: PinnedHostSlice<u8>,
    tensors: Vec<Tensor>,
    /// Recorded after the copy.
    arrived: Event,
    /// Recorded after the work that reads the tensors.
    read: Event,
}

impl Upload {
    /// Memory for batches like this one.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(device: &Device, like: &[Tensor]) -> Result<Self> {
        /// The CPU writes it in order and does not read it.
        const WRITE_COMBINED: u32 = sys::CU_MEMHOSTALLOC_WRITECOMBINED;
        let work = Stream::of(device)?;
        work.bind()?;
        let bytes: u64 = like.iter().map(bytes_of).sum();
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        // SAFETY: the bytes are not read before `enqueue` has written them.
        let host = unsafe { context.alloc_pinned_with_flags::<u8>(bytes.max(1) as usize, WRITE_COMBINED) };
        let host = host.map_err(wrap("cuMemHostAlloc"))?;
        let tensors = like.iter().map(|tensor| Tensor::zeros(tensor.shape(), tensor.dtype(), device));
        let tensors = tensors.collect::<candle::Result<Vec<_>>>()?;
        let (copies, arrived, read) = (work.beside()?, work.event(false)?, work.event(false)?);
        work.record(&read)?;
        Ok(Self { work, copies, host, tensors, arrived, read })
    }

    /// Is there room for this batch?
    pub fn fits(&self, batch: &[Tensor]) -> bool {
        let is_alike =
            |(own, tensor): (&Tensor, &Tensor)| own.shape() == tensor.shape() && own.dtype() == tensor.dtype();
        batch.len() == self.tensors.len() && self.tensors.iter().zip(batch).all(is_alike)
    }

    /// Enqueues the copy of a batch on the CPU, behind the work that reads the one before.
    ///
    /// # Errors
    /// A batch that does not fit, or a call of the driver that failed.
    pub fn enqueue(&mut self, batch: &[Tensor]) -> Result<()> {
        if !self.fits(batch) {
            return Err(Error::Internal { message: "a batch has other shapes than its memory".into() });
        }
        self.work.bind()?;
        self.arrived.wait()?;
        let host = self.host.as_mut_slice().map_err(wrap("cuEventSynchronize"))?;
        self.copies.wait(&self.read)?;
        let mut from = 0;
        for (tensor, own) in batch.iter().zip(&self.tensors) {
            let bytes = tensor.data();
            host[from..from + bytes.len()].copy_from_slice(&bytes);
            let part = &host[from..from + bytes.len()];
            from += bytes.len();
            // SAFETY: both have so many bytes. `take` and `drop` keep them until the copy has ended, and `arrived` keeps the next call
            // from writing to the host's.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(address_of(own)?, part.as_ptr().cast(), part.len(), self.copies.raw())
            })?;
        }
        self.copies.record(&self.arrived)
    }

    /// The batch that was enqueued, in memory of its own, in the order of the device's work.
    ///
    /// # Errors
    /// No memory left, or a call of the driver that failed.
    pub fn take(&mut self) -> Result<Vec<Tensor>> {
        self.work.wait(&self.arrived)?;
        let batch = self.tensors.iter().map(Tensor::copy).collect::<candle::Result<Vec<_>>>()?;
        self.work.record(&self.read)?;
        Ok(batch)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The device may still read and write here, by a copy behind which no event could be recorded, too. A failure concerns nobody
        // any more.
        let _ = self.copies.synchronize();
    }
}
