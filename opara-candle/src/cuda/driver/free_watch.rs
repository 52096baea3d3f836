//! Which watches a free of memory concerns, and the order of frees and launches. It knows no driver, so that a model checker can run it
//! in every order.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use hashbrown::{HashMap, HashSet};

use crate::sync::{AtomicBool, Mutex, RwLock};

/// The first byte of an allocation.
type Address = u64;

/// A watch of memory. `E` is the end of a launch.
pub(super) struct FreeWatch<E> {
    /// The end of the last launch, if it is noted. Locked while a graph is launched, so that a free of memory that it reads happens
    /// either before, and is seen, or after. No user code runs under the lock.
    launched: Mutex<Option<E>>,
    /// Is any of it freed? Can be read without waiting for a launch.
    freed: AtomicBool,
    /// Locked for moments only, under the lock of all watches.
    of: Mutex<Of>,
}

enum Of {
    /// All memory, with the allocations freed so far.
    All(HashSet<Address>),
    /// These allocations only.
    Only(HashSet<Address>),
}

impl<E> FreeWatch<E> {
    fn new(of: Of, freed: bool) -> Arc<Self> {
        Arc::new(Self { launched: Mutex::new(None), freed: AtomicBool::new(freed), of: Mutex::new(of) })
    }

    /// Has watched memory been freed?
    pub fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Acquire)
    }

    /// Runs `launch`, which may note its end, unless watched memory has been freed. Frees of it wait meanwhile.
    pub fn launch<T>(&self, launch: impl FnOnce(&mut Option<E>) -> T) -> Option<T> {
        let mut launched = self.launched.lock();
        (!self.is_freed()).then(|| launch(&mut launched))
    }

    /// Was one of these freed before this watch was limited?
    fn has_seen(&self, allocations: &[Address]) -> bool {
        match &*self.of.lock() {
            Of::All(freed) => allocations.iter().any(|allocation| freed.contains(allocation)),
            Of::Only(_) => false,
        }
    }
}

/// The watches to notify of a free.
///
/// A free marks the watches and looks at their launches later, so nobody waits for a launch under this lock: a launch may start or end
/// watches itself.
pub(super) struct FreeWatches<E>(RwLock<Watches<E>>);

struct Watches<E> {
    of_all: Vec<Weak<FreeWatch<E>>>,
    of_one: HashMap<Address, Vec<Weak<FreeWatch<E>>>>,
}

impl<E> Watches<E> {
    /// Notifies the watch of frees of these allocations only, from now on.
    fn limit(&mut self, watch: &Arc<FreeWatch<E>>, allocations: &[Address]) {
        let of = allocations.iter().copied().collect();
        self.remove(watch);
        for &allocation in &of {
            self.of_one.entry(allocation).or_default().push(Arc::downgrade(watch));
        }
        *watch.of.lock() = Of::Only(of);
    }

    fn remove(&mut self, watch: &Arc<FreeWatch<E>>) {
        let is_other = |other: &Weak<FreeWatch<E>>| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(watch));
        match &*watch.of.lock() {
            Of::All(_) => self.of_all.retain(is_other),
            Of::Only(allocations) => {
                for allocation in allocations {
                    if let Some(of_one) = self.of_one.get_mut(allocation) {
                        of_one.retain(is_other);
                        if of_one.is_empty() {
                            self.of_one.remove(allocation);
                        }
                    }
                }
            }
        }
    }
}

impl<E> FreeWatches<E> {
    pub fn new() -> Self {
        Self(RwLock::new(Watches { of_all: Vec::new(), of_one: HashMap::new() }))
    }

    /// Starts a watch of all memory.
    pub fn start(&self) -> Arc<FreeWatch<E>> {
        let watch = FreeWatch::new(Of::All(HashSet::new()), false);
        self.0.write().of_all.push(Arc::downgrade(&watch));
        watch
    }

    /// Limits a watch to these allocations. Their frees since it watches them count.
    pub fn limit(&self, watch: &Arc<FreeWatch<E>>, allocations: &[Address]) {
        let mut watches = self.0.write();
        if watch.has_seen(allocations) {
            watch.freed.store(true, Ordering::Release);
        }
        watches.limit(watch, allocations);
    }

    /// A watch of these allocations, all of which the other one watches, too. It knows what the other one knows.
    pub fn duplicate(&self, watch: &Arc<FreeWatch<E>>, allocations: &[Address]) -> Arc<FreeWatch<E>> {
        let mut watches = self.0.write();
        // No free comes between this and the start: it would have to mark the other one, which takes the lock.
        let duplicate = FreeWatch::new(Of::Only(HashSet::new()), watch.is_freed() || watch.has_seen(allocations));
        watches.limit(&duplicate, allocations);
        duplicate
    }

    /// Ends a watch.
    pub fn end(&self, watch: &Arc<FreeWatch<E>>) {
        self.0.write().remove(watch);
    }

    /// Notifies the watches of this allocation that it is about to be freed. Waits for launches that read it, and calls `delay` with
    /// their ends.
    pub fn before_free(&self, allocation: Address, delay: impl Fn(&E)) {
        let freed: Vec<Arc<FreeWatch<E>>> = {
            let watches = self.0.read();
            for watch in watches.of_all.iter().filter_map(Weak::upgrade) {
                if let Of::All(freed) = &mut *watch.of.lock() {
                    freed.insert(allocation);
                }
            }
            let of_one = watches.of_one.get(&allocation).into_iter().flatten().filter_map(Weak::upgrade);
            of_one.inspect(|watch| watch.freed.store(true, Ordering::Release)).collect()
        };
        for watch in freed {
            if let Some(launched) = &*watch.launched.lock() {
                delay(launched);
            }
        }
    }

    /// Is any watch notified of its free alone?
    #[cfg(test)]
    pub fn knows(&self, allocation: Address) -> bool {
        self.0.read().of_one.contains_key(&allocation)
    }
}
