//! Detects frees of memory that a captured graph reads but does not own: the module's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use hashbrown::{HashMap, HashSet};
use opara_interpose::on_free;
use parking_lot::{Mutex, RwLock};

use super::{Event, Stream};
use crate::{Error, Result};

/// Watches frees of memory on all threads, while it lives.
///
/// A capture knows only at its end which memory it used. So a watch starts before the capture with all memory, and is
/// [limited](Self::limit_to) to the used memory afterwards.
pub(in crate::cuda) struct WatchedMemory(Arc<Watch>);

struct Watch {
    /// Locked while a graph is launched, so that a free of memory that it reads happens either before, and is seen, or
    /// after. No user code runs under the lock.
    state: Mutex<State>,
    /// A copy of the state's result that can be read without waiting for a launch.
    freed: AtomicBool,
}

struct State {
    of: Of,
    /// End of the last launch, if every thread has a stream of its own: memory that is freed on another thread's stream
    /// could be reused there at once.
    launched: Option<Event>,
}

enum Of {
    /// All memory, with the allocations freed so far.
    All(HashSet<CUdeviceptr>),
    /// These allocations only.
    Only(HashSet<CUdeviceptr>),
}

/// The watches to notify of a free.
#[derive(Default)]
struct Watches {
    of_all: Vec<Weak<Watch>>,
    /// By the allocation's first byte.
    of_one: HashMap<CUdeviceptr, Vec<Weak<Watch>>>,
}

static WATCHES: RwLock<Option<Watches>> = RwLock::new(None);

impl WatchedMemory {
    /// Starts watching all memory.
    pub fn new() -> Self {
        on_free(before_free);
        let state = Mutex::new(State { of: Of::All(HashSet::new()), launched: None });
        let watch = Arc::new(Watch { state, freed: AtomicBool::new(false) });
        WATCHES.write().get_or_insert_default().of_all.push(Arc::downgrade(&watch));
        Self(watch)
    }

    /// Watches only these allocations from now on. Frees since the start count.
    pub fn limit_to(&self, allocations: &[CUdeviceptr]) {
        {
            let mut watches = WATCHES.write();
            let watches = watches.get_or_insert_default();
            for &allocation in allocations {
                watches.of_one.entry(allocation).or_default().push(Arc::downgrade(&self.0));
            }
            watches.of_all.retain(|watch| !self.is(watch));
        }
        let mut state = self.0.state.lock();
        if let Of::All(freed) = &state.of {
            if allocations.iter().any(|allocation| freed.contains(allocation)) {
                self.0.freed.store(true, Ordering::Release);
            }
        }
        state.of = Of::Only(allocations.iter().copied().collect());
    }

    /// Watches these allocations, all of which this value watches, too. Frees since this value's start count.
    pub fn duplicate(&self, allocations: &[CUdeviceptr]) -> Self {
        let duplicate = Self::new();
        duplicate.limit_to(allocations);
        // Whatever was freed before the duplicate's start is known here.
        if self.is_freed() {
            duplicate.0.freed.store(true, Ordering::Release);
        }
        duplicate
    }

    /// Has watched memory been freed? Then graphs that read it must not be launched any more.
    pub fn is_freed(&self) -> bool {
        self.0.freed.load(Ordering::Acquire)
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
        let mut state = self.0.state.lock();
        match self.is_freed() {
            true => Err(Error::MemoryFreed),
            false => launch(&mut state.launched),
        }
    }

    fn is(&self, watch: &Weak<Watch>) -> bool {
        std::ptr::eq(watch.as_ptr(), Arc::as_ptr(&self.0))
    }
}

impl Drop for WatchedMemory {
    fn drop(&mut self) {
        let mut watches = WATCHES.write();
        let Some(watches) = watches.as_mut() else { return };
        watches.of_all.retain(|watch| !self.is(watch));
        if let Of::Only(allocations) = &self.0.state.lock().of {
            for allocation in allocations {
                if let Some(of_one) = watches.of_one.get_mut(allocation) {
                    of_one.retain(|watch| !self.is(watch));
                    if of_one.is_empty() {
                        watches.of_one.remove(allocation);
                    }
                }
            }
        }
    }
}

/// Notifies the watches of this allocation that it is about to be freed on a stream. Waits for launches that read it.
/// If the stream would not wait for their end by itself, makes it wait.
fn before_free(allocation: CUdeviceptr, stream: CUstream) {
    let notified: Vec<Arc<Watch>> = match WATCHES.read().as_ref() {
        Some(watches) => {
            let of_one = watches.of_one.get(&allocation).into_iter().flatten();
            watches.of_all.iter().chain(of_one).filter_map(Weak::upgrade).collect()
        }
        None => return,
    };
    for watch in notified {
        let mut state = watch.state.lock();
        match &mut state.of {
            Of::All(freed) => _ = freed.insert(allocation),
            Of::Only(allocations) if allocations.contains(&allocation) => {
                watch.freed.store(true, Ordering::Release);
                if let Some(launched) = &state.launched {
                    launched.delay(stream);
                }
            }
            Of::Only(_) => {}
        }
    }
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
        let all = WATCHES.read();
        assert!(all.as_ref().is_some_and(|all| !all.of_one.contains_key(&shared)));
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
                assert!(!watch.is_freed());
                Ok(())
            })?;
            assert!(ended.recv().is_err(), "the free comes after the launch");
            assert!(matches!(watch.unless_freed(|_| Ok(())), Err(Error::MemoryFreed)));
            Ok(())
        })
    }
}
