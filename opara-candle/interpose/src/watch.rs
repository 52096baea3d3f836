//! Who watches a thread's writes to device memory.

use std::cell::Cell;

use cudarc::driver::sys::{CUdeviceptr, CUDA_KERNEL_NODE_PARAMS};
use opara_plan::trace::AccessMode;

use super::library_call::Call;
use super::restore::Restore;
use super::thread_capture;

/// Is told what a thread is about to write on the device, and what it allocates and frees. Its own calls are neither watched nor captured.
pub trait WriteWatch {
    /// A kernel is about to be launched. Returns whether it may be: if not, the call fails for a lack of memory.
    ///
    /// # Safety
    /// The kernel and its arguments must exist.
    unsafe fn before_launch(&mut self, launch: CUDA_KERNEL_NODE_PARAMS) -> bool;

    /// Bytes at these addresses are about to be written. Returns whether they may be.
    fn before_writes(&mut self, addresses: &mut dyn Iterator<Item = CUdeviceptr>) -> bool;

    /// So many bytes were allocated.
    fn allocated(&mut self, address: CUdeviceptr, bytes: usize);

    /// This allocation is about to be freed.
    fn freed(&mut self, address: CUdeviceptr);
}

/// The watch of a thread, if it has one.
pub(crate) type Current = Option<*mut dyn WriteWatch>;

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(None) };
    /// Passes of this thread that were watched.
    static PASSES: Cell<u64> = const { Cell::new(0) };
}

/// Removes this thread's watch, for [`during`] on another thread.
pub(crate) fn take() -> Current {
    CURRENT.replace(None)
}

/// Gives the watch of [`take`] back to this thread.
pub(crate) fn give_back(watch: Current) {
    CURRENT.set(watch);
}

/// Runs `f` with this watch, or none, as this thread's.
pub(crate) fn during<T>(watch: Current, f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(watch));
    f()
}

/// Runs a pass on this thread, of which `watch` is told.
pub fn watch<T>(watch: &mut (dyn WriteWatch + 'static), pass: impl FnOnce() -> T) -> T {
    PASSES.set(PASSES.get() + 1);
    during(Some(watch), pass)
}

/// Runs `f` unwatched: writes of an executor that is built inside a pass are not writes of the pass.
pub fn unwatched<T>(f: impl FnOnce() -> T) -> T {
    during(None, f)
}

/// Are writes of this thread watched?
pub(crate) fn is_watched() -> bool {
    CURRENT.get().is_some()
}

/// What tells the pass whose writes are watched from others of this thread, if there is one.
#[cfg(feature = "cudnn")]
pub(crate) fn pass() -> Option<u64> {
    is_watched().then(|| PASSES.get())
}

/// Asks this thread's watch; without one, everything may be written.
fn ask(f: impl FnOnce(&mut dyn WriteWatch) -> bool) -> bool {
    let Some(current) = take() else { return true };
    let _restore = Restore(&CURRENT, Some(current));
    // SAFETY: the pointer is that of the value that `watch` borrows until this thread is done. It is out of the thread-local while
    // `f` runs, so this is the only reference.
    let watch = unsafe { &mut *current };
    thread_capture::outside(|| f(watch))
}

/// A kernel is about to be launched. Returns whether it may be.
#[must_use]
pub(crate) fn before_launch(launch: CUDA_KERNEL_NODE_PARAMS) -> bool {
    // SAFETY: the caller of the interposed function vouches for the kernel and its arguments.
    ask(|watch| unsafe { watch.before_launch(launch) })
}

/// These bytes are about to be written. Returns whether they may be.
#[must_use]
pub(crate) fn before_write(address: CUdeviceptr) -> bool {
    ask(|watch| watch.before_writes(&mut [address].into_iter()))
}

/// A library is about to be called. Returns whether it may be.
#[must_use]
pub(crate) fn before_call(call: &Call) -> bool {
    let operands = call.operands.iter().flatten();
    let mut written = operands.filter(|operand| operand.mode != AccessMode::Read).map(|operand| operand.address);
    ask(|watch| watch.before_writes(&mut written))
}

/// Memory was allocated.
pub(crate) fn allocated(address: CUdeviceptr, bytes: usize) {
    ask(|watch| {
        watch.allocated(address, bytes);
        true
    });
}

/// Memory is about to be freed.
pub(crate) fn freed(address: CUdeviceptr) {
    ask(|watch| {
        watch.freed(address);
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told {
        written: Vec<CUdeviceptr>,
        live: Vec<(CUdeviceptr, usize)>,
        nested: Vec<bool>,
    }

    impl WriteWatch for Told {
        unsafe fn before_launch(&mut self, _: CUDA_KERNEL_NODE_PARAMS) -> bool {
            true
        }

        fn before_writes(&mut self, addresses: &mut dyn Iterator<Item = CUdeviceptr>) -> bool {
            self.nested.push(is_watched());
            self.written.extend(addresses);
            self.written.len() < 3
        }

        fn allocated(&mut self, address: CUdeviceptr, bytes: usize) {
            self.live.push((address, bytes));
        }

        fn freed(&mut self, address: CUdeviceptr) {
            self.live.retain(|(live, _)| *live != address);
        }
    }

    #[test]
    fn a_watch_is_told_of_its_own_passes_and_can_refuse() {
        let mut told = Told::default();
        assert!(!is_watched() && before_write(1));
        let may = watch(&mut told, || {
            allocated(10, 4);
            allocated(20, 8);
            freed(10);
            let hidden = unwatched(|| before_write(2));
            [hidden, before_write(3), before_write(4), before_write(5)]
        });
        assert_eq!(may, [true, true, true, false]);
        assert_eq!((told.written, told.live, told.nested), (vec![3, 4, 5], vec![(20, 8)], vec![false; 3]));
        assert!(!is_watched());
    }

    #[test]
    fn of_a_library_call_what_is_written_is_told() {
        use crate::library_call::{Meaning, Operand};
        let operands = vec![Operand::read(1, 4), Operand::written(2, 4), Operand::read_and_written(3, 4)];
        let call = Call { name: "cublasSgemm_v2", operands: Some(operands), meaning: Meaning::Other, computes: None };
        let mut told = Told::default();
        assert!(watch(&mut told, || before_call(&call)));
        assert_eq!(told.written, [2, 3]);
    }
}
