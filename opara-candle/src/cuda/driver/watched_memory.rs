//! Memory that the module made before and frees later, while graphs still read it: who wants to know is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::CUdeviceptr;
use hashbrown::HashMap;
use parking_lot::RwLock;

/// Who wants to know that an allocation is freed, by its first byte.
type Watchers = HashMap<CUdeviceptr, Vec<Weak<AtomicBool>>>;
static WATCHERS: RwLock<Option<Watchers>> = RwLock::new(None);

/// Sets `freed` as soon as Rust frees one of these allocations.
pub(in crate::cuda) fn watch_frees(allocations: &[CUdeviceptr], freed: &Arc<AtomicBool>) {
    let mut watchers = WATCHERS.write();
    let watchers = watchers.get_or_insert_default();
    watchers.retain(|_, flags| {
        flags.retain(|flag| flag.strong_count() > 0);
        !flags.is_empty()
    });
    for &allocation in allocations {
        watchers.entry(allocation).or_default().push(Arc::downgrade(freed));
    }
}

/// Runs `free`, which frees an allocation, with those told who watch it.
pub(super) fn freed<T>(allocation: CUdeviceptr, free: impl FnOnce() -> T) -> T {
    if let Some(flags) = WATCHERS.read().as_ref().and_then(|watchers| watchers.get(&allocation)) {
        flags.iter().filter_map(Weak::upgrade).for_each(|flag| flag.store(true, Ordering::Release));
    }
    free()
}
