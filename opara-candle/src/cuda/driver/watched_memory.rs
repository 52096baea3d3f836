//! Detects frees of memory that a captured graph reads but does not own: the module's memory.

use std::sync::{Arc, LazyLock};

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use opara_interpose::on_free;

use super::free_watch::{FreeWatch, FreeWatches};
use super::{Event, Stream};
use crate::{Error, Result};

/// Watches frees of memory on all threads, while it lives.
///
/// A capture knows only at its end which memory it used. So a watch starts before the capture with all memory, and is
/// [limited](Self::limit_to) to the used memory afterwards.
///
/// The end of a launch is noted if every thread has a stream of its own: memory that is freed on another thread's stream could be
/// reused there at once.
pub(in crate::cuda) struct WatchedMemory(Arc<FreeWatch<Event>>);

static WATCHES: LazyLock<FreeWatches<Event>> = LazyLock::new(FreeWatches::new);

impl WatchedMemory {
    /// Starts watching all memory.
    pub fn new() -> Self {
        on_free(before_free);
        Self(WATCHES.start())
    }

    /// Watches only these allocations from now on. Frees since the start count, or, if it is limited already, those of memory that
    /// it watched.
    pub fn limit_to(&self, allocations: &[CUdeviceptr]) {
        WATCHES.limit(&self.0, allocations);
    }

    /// Watches these allocations, all of which this value watches, too. Frees since this value's start count.
    pub fn duplicate(&self, allocations: &[CUdeviceptr]) -> Self {
        Self(WATCHES.duplicate(&self.0, allocations))
    }

    /// Has watched memory been freed? Then graphs that read it must not be launched any more.
    pub fn is_freed(&self) -> bool {
        self.0.is_freed()
    }

    /// Runs `launch`, which launches a graph that reads the memory on this stream. Frees on other threads wait
    /// meanwhile, so `launch` must not run user code or free watched memory.
    ///
    /// # Errors
    /// [`Error::MemoryFreed`] if the memory has been freed, and errors of `launch`.
    pub fn launch(&self, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.unless_freed(|launched| {
            launch()?;
            if stream.is_per_thread() {
                stream.note(launched)?;
            }
            Ok(())
        })
    }

    fn unless_freed(&self, launch: impl FnOnce(&mut Option<Event>) -> Result<()>) -> Result<()> {
        self.0.launch(launch).unwrap_or(Err(Error::MemoryFreed))
    }
}

impl Drop for WatchedMemory {
    fn drop(&mut self) {
        WATCHES.end(&self.0);
    }
}

/// Notifies the watches of this allocation that it is about to be freed on a stream. Waits for launches that read it.
/// If the stream would not wait for their end by itself, makes it wait.
fn before_free(allocation: CUdeviceptr, stream: CUstream) {
    WATCHES.before_free(allocation, |launched| launched.delay(stream));
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Addresses that no driver returns; each test uses its own.
    const UNUSED: CUdeviceptr = 1 << 60;

    #[test]
    fn a_free_between_the_start_and_the_limit_counts() {
        let (early, late, other) = (UNUSED + 1, UNUSED + 2, UNUSED + 3);
        let before = WatchedMemory::new();
        before_free(early, null_mut());
        before.limit_to(&[early, late]);
        assert!(before.is_freed());
        let after = WatchedMemory::new();
        after.limit_to(&[early, late]);
        before_free(other, null_mut());
        assert!(!after.is_freed());
        before_free(late, null_mut());
        assert!(after.is_freed());
    }

    #[test]
    fn a_duplicate_knows_of_earlier_frees_and_sees_later_ones() {
        let (early, late) = (UNUSED + 4, UNUSED + 5);
        let watch = WatchedMemory::new();
        watch.limit_to(&[early, late]);
        let duplicate = watch.duplicate(&[late]);
        before_free(early, null_mut());
        assert!(watch.is_freed() && !duplicate.is_freed());
        assert!(watch.duplicate(&[late]).is_freed());
        before_free(late, null_mut());
        assert!(duplicate.is_freed());
    }

    #[test]
    fn two_watches_of_the_same_memory_leave_no_entry_behind() {
        let shared = UNUSED + 10;
        let watches = [WatchedMemory::new(), WatchedMemory::new()];
        watches.iter().for_each(|watch| watch.limit_to(&[shared]));
        let [first, second] = watches;
        drop(first);
        before_free(shared, null_mut());
        assert!(second.is_freed());
        drop(second);
        assert!(!WATCHES.knows(shared));
    }

    #[test]
    fn a_free_waits_for_a_launch_and_blocks_later_launches() -> anyhow::Result<()> {
        let address = UNUSED + 20;
        let watch = WatchedMemory::new();
        watch.limit_to(&[address]);
        let (go, start) = channel::<()>();
        let (end, ended) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                // Wait until the launch is running.
                assert!(start.recv().is_err());
                before_free(address, null_mut());
                drop(end);
            });
            watch.unless_freed(|_| {
                drop(go);
                assert!((0..1_000).all(|_| ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty)));
                Ok(())
            })?;
            assert!(ended.recv().is_err(), "the free comes after the launch");
            assert!(matches!(watch.unless_freed(|_| Ok(())), Err(Error::MemoryFreed)));
            Ok(())
        })
    }
}
