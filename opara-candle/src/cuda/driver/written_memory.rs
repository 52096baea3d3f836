//! Saves and restores a module's state on the device: memory that is older than a forward pass, and that the pass writes.
//!
//! Building an executor runs the module's kernels many times. Before an eager pass writes to an older allocation for the first
//! time, the allocation is copied. The copy is restored after each pass, and at the end of building. So building does not change
//! a counter or a cache on the device. If there is no memory for the copy, the write is refused: the pass fails, and so does
//! building.

use std::collections::BTreeMap;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUdeviceptr};
use opara_interpose::WriteWatch;

use super::allocation::allocation_at;
use super::kernel::{Functions, KernelNode};
use super::{check, Stream, WatchedMemory};
use crate::{Error, Result};

/// The addresses through which a launch may write.
pub(in crate::cuda) type WrittenBy = fn(&KernelNode) -> Vec<u64>;

/// Copies of the memory that passes have written so far. Dropping this before [`end`](Self::end), because building failed, restores
/// them.
pub(in crate::cuda) struct WrittenMemory {
    stream: Stream,
    written_by: WrittenBy,
    functions: Functions,
    /// First byte and size of memory that the current pass may write freely: its arguments, and its own live
    /// allocations.
    live: BTreeMap<CUdeviceptr, usize>,
    /// By address of the allocation.
    copies: BTreeMap<CUdeviceptr, Copied>,
    /// The error of a copy that failed.
    failed: Result<()>,
}

// SAFETY: the driver's handles may be used from any thread whose context is current; the value has one owner at a time.
unsafe impl Send for WrittenMemory {}

/// The content of an allocation before the first pass.
struct Copied {
    bytes: usize,
    copy: CUdeviceptr,
    /// Tells whether the allocation has been freed.
    watch: WatchedMemory,
}

impl WrittenMemory {
    /// An empty watch. `written_by` returns the addresses through which a kernel may write.
    pub fn new(stream: &Stream, written_by: WrittenBy) -> Self {
        Self {
            stream: stream.clone(),
            written_by,
            functions: Functions::default(),
            live: BTreeMap::new(),
            copies: BTreeMap::new(),
            failed: Ok(()),
        }
    }

    /// Runs a pass and watches its writes, except writes to the allocations that contain the addresses `own`.
    ///
    /// # Errors
    /// No memory for a copy. The write was then not made.
    pub fn watch<T>(&mut self, own: &[u64], pass: impl FnOnce() -> T) -> Result<T> {
        let own = own.iter().filter_map(|&address| allocation_at(address));
        self.live = own.map(|allocation| (allocation.start, allocation.bytes as usize)).collect();
        let result = opara_interpose::watch(self, pass);
        std::mem::replace(&mut self.failed, Ok(()))?;
        Ok(result)
    }

    /// Restores the contents from before the first pass.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn restore(&self) -> Result<()> {
        if self.copies.is_empty() {
            return Ok(());
        }
        self.stream.bind()?;
        for (&address, copied) in self.copies.iter().filter(|(_, copied)| !copied.watch.is_freed()) {
            // SAFETY: the copy has as many bytes as the allocation, which still exists.
            let copy = || unsafe { sys::cuMemcpyDtoDAsync_v2(address, copied.copy, copied.bytes, self.stream.raw()) };
            match copied.watch.launch(&self.stream, || check("cuMemcpyDtoDAsync", copy())) {
                Err(Error::MemoryFreed) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Restores the contents from before the first pass, and ends the watch.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn end(mut self) -> Result<()> {
        // If it fails, dropping `self` tries again.
        self.restore()?;
        self.free();
        Ok(())
    }

    /// Frees the copies.
    fn free(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        if self.stream.make_current() {
            for copied in copies.into_values() {
                // SAFETY: this value owned the copy, and its readers are before this in the stream.
                unsafe { sys::cuMemFreeAsync(copied.copy, self.stream.raw()) };
            }
        }
    }

    /// Copies the allocation around an address, unless this pass allocated it or it is copied already.
    fn save(&mut self, address: u64) {
        let in_pass = self.live.range(..=address).next_back();
        if in_pass.is_some_and(|(start, bytes)| address < start + *bytes as u64) {
            return;
        }
        let Some(allocation) = allocation_at(address) else { return };
        let copied = self.copies.get(&allocation.start);
        if copied.is_some_and(|copied| !copied.watch.is_freed()) || self.failed.is_err() {
            return;
        }
        let (stream, bytes, mut copy) = (self.stream.raw(), allocation.bytes as usize, 0);
        // SAFETY: `copy` receives an allocation of the copied size; the copy is ordered on the stream.
        let copied = unsafe {
            check("cuMemAllocAsync", sys::cuMemAllocAsync(&mut copy, bytes, stream)).and_then(|()| {
                let copied = sys::cuMemcpyDtoDAsync_v2(copy, allocation.start, bytes, stream);
                check("cuMemcpyDtoDAsync", copied).inspect_err(|_| _ = sys::cuMemFreeAsync(copy, stream))
            })
        };
        match copied {
            Ok(()) => {
                let watch = WatchedMemory::new();
                watch.limit_to(&[allocation.start]);
                if let Some(old) = self.copies.insert(allocation.start, Copied { bytes, copy, watch }) {
                    // SAFETY: the copy of a freed allocation is not used any more.
                    unsafe { sys::cuMemFreeAsync(old.copy, stream) };
                }
            }
            Err(error) => self.failed = Err(error),
        }
    }
}

impl Drop for WrittenMemory {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            tracing::error!(%error, "the module's state on the device could not be put back");
        }
        self.free();
    }
}

impl WriteWatch for WrittenMemory {
    unsafe fn before_launch(&mut self, launch: sys::CUDA_KERNEL_NODE_PARAMS) -> bool {
        // SAFETY: the caller vouches for the kernel and its arguments; there is no node.
        match unsafe { self.functions.kernel(null_mut(), launch) } {
            Ok(kernel) => (self.written_by)(&kernel).into_iter().for_each(|address| self.save(address)),
            Err(error) => self.failed = Err(error),
        }
        self.failed.is_ok()
    }

    fn before_writes(&mut self, addresses: &mut dyn Iterator<Item = CUdeviceptr>) -> bool {
        addresses.for_each(|address| self.save(address));
        self.failed.is_ok()
    }

    fn allocated(&mut self, address: CUdeviceptr, bytes: usize) {
        self.live.insert(address, bytes);
    }

    fn freed(&mut self, address: CUdeviceptr) {
        self.live.remove(&address);
    }
}
