//! Saves and restores a module's state on the device: memory that is older than a forward pass, and that the pass writes.
//!
//! Building an executor runs the module's kernels many times. Before an eager pass writes to an older allocation for the first
//! time, the allocation is copied. The copy is restored after each pass, and at the end of building. So building does not change
//! a counter or a cache on the device. If there is no memory for the copy, the write is refused: the pass fails, and so does
//! building.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUdeviceptr};

use super::library_call::Call;
use super::restore::Restore;
use super::thread_capture;
use crate::cuda::driver::allocation::allocation_at;
use crate::cuda::driver::kernel::{Functions, KernelNode};
use crate::cuda::driver::{check, Stream, WatchedMemory};
use crate::trace::AccessMode;
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

thread_local! {
    /// The write watch of this thread, or null.
    static CURRENT: Cell<*mut WrittenMemory> = const { Cell::new(null_mut()) };
    /// Passes of this thread that were watched.
    static PASSES: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn take() -> *mut WrittenMemory {
    CURRENT.replace(null_mut())
}

pub(super) fn give_back(watched: *mut WrittenMemory) {
    CURRENT.set(watched);
}

pub(super) fn during<T>(watched: *mut WrittenMemory, f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(watched));
    f()
}

/// Runs `f` unwatched: writes of an executor that is built inside a pass are not writes of the pass.
pub(crate) fn unwatched<T>(f: impl FnOnce() -> T) -> T {
    during(null_mut(), f)
}

/// Are writes of this thread watched?
pub(super) fn is_watched() -> bool {
    !CURRENT.get().is_null()
}

/// What tells the pass whose writes are watched from others of this thread, if there is one.
#[cfg(feature = "cudnn")]
pub(super) fn pass() -> Option<u64> {
    is_watched().then(|| PASSES.get())
}

/// Calls `f` with the write watch of this thread. Driver calls in `f` are neither watched nor captured.
///
/// # Returns
/// Whether all writes of the pass so far can be undone.
fn with(f: impl FnOnce(&mut WrittenMemory)) -> bool {
    let current = CURRENT.replace(null_mut());
    if current.is_null() {
        return true;
    }
    let _restore = Restore(&CURRENT, current);
    // SAFETY: the pointer is that of the value that `watch` borrows until this thread is done. It is out of the thread-local while
    // `f` runs, so this is the only reference.
    let watched = unsafe { &mut *current };
    thread_capture::outside(|| f(watched));
    watched.failed.is_ok()
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
        PASSES.set(PASSES.get() + 1);
        let result = during(self, pass);
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

/// A kernel is about to be launched. Returns whether it may be.
#[must_use]
pub(super) fn before_launch(params: sys::CUDA_KERNEL_NODE_PARAMS) -> bool {
    with(|watched| {
        // SAFETY: the caller of the interposed function vouches for the kernel and its arguments; there is no node.
        match unsafe { watched.functions.kernel(null_mut(), params) } {
            Ok(kernel) => (watched.written_by)(&kernel).into_iter().for_each(|address| watched.save(address)),
            Err(error) => watched.failed = Err(error),
        }
    })
}

/// These bytes are about to be written. Returns whether they may be.
#[must_use]
pub(super) fn before_write(address: CUdeviceptr) -> bool {
    with(|watched| watched.save(address))
}

/// A library is about to be called. Returns whether it may be.
#[must_use]
pub(super) fn before_call(call: &Call) -> bool {
    with(|watched| {
        let operands = call.operands.iter().flatten();
        operands.filter(|operand| operand.mode != AccessMode::Read).for_each(|operand| watched.save(operand.address));
    })
}

/// Memory was allocated.
pub(super) fn allocated(address: CUdeviceptr, bytes: usize) {
    with(|watched| {
        watched.live.insert(address, bytes);
    });
}

/// Memory is about to be freed.
pub(super) fn freed(address: CUdeviceptr) {
    with(|watched| {
        watched.live.remove(&address);
    });
}
