//! Watches of memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread;

use crate::free_watch::{FreeWatch, FreeWatches};

/// An allocation, and all watches.
struct Memory {
    watches: FreeWatches<()>,
    /// Only the watch orders its reads and writes.
    is_reused: AtomicBool,
    /// How often a free was delayed until a launch ends.
    delays: AtomicUsize,
}

const AT: u64 = 4096;

impl Memory {
    fn new() -> Arc<Self> {
        let (is_reused, delays) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Self { watches: FreeWatches::new(), is_reused, delays })
    }

    /// Frees the allocation on another thread, which then has other contents.
    fn free(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let memory = self.clone();
        thread::spawn(move || {
            memory.watches.before_free(AT, |()| _ = memory.delays.fetch_add(1, Relaxed));
            memory.is_reused.store(true, Relaxed);
        })
    }

    /// A launch that reads the allocation and notes its end. Returns whether it was let through.
    fn launch(&self, watch: &FreeWatch<()>) -> bool {
        let launched = watch.launch(|launched| {
            assert!(!self.is_reused.load(Relaxed), "a launch reads memory that was freed");
            *launched = Some(());
        });
        launched.is_some()
    }

    /// The watch knows of a free that has come back, and the free was delayed if the launch came first.
    fn has_ended(&self, watch: &FreeWatch<()>, launched: bool) {
        assert!(watch.is_freed() && !self.launch(watch));
        assert_eq!(self.delays.load(Relaxed), usize::from(launched));
    }
}

#[test]
fn a_free_comes_after_a_launch_or_refuses_it() {
    loom::model(|| {
        let memory = Memory::new();
        let watch = memory.watches.start();
        memory.watches.limit(&watch, &[AT]);
        let free = memory.free();
        let launched = memory.launch(&watch);
        free.join().expect("no panic");
        memory.has_ended(&watch, launched);
    });
}

#[test]
fn a_free_while_the_watch_is_limited_counts() {
    loom::model(|| {
        let memory = Memory::new();
        let watch = memory.watches.start();
        let free = memory.free();
        memory.watches.limit(&watch, &[AT]);
        let launched = memory.launch(&watch);
        free.join().expect("no panic");
        memory.has_ended(&watch, launched);
    });
}

#[test]
fn a_free_while_a_watch_is_limited_again_counts() {
    loom::model(|| {
        let memory = Memory::new();
        let watch = memory.watches.start();
        memory.watches.limit(&watch, &[AT]);
        let free = memory.free();
        memory.watches.limit(&watch, &[AT, AT + 1]);
        let launched = memory.launch(&watch);
        free.join().expect("no panic");
        memory.has_ended(&watch, launched);
    });
}

#[test]
fn a_free_while_a_duplicate_starts_counts() {
    for is_limited in [false, true] {
        loom::model(move || {
            let memory = Memory::new();
            let watch = memory.watches.start();
            if is_limited {
                memory.watches.limit(&watch, &[AT]);
            }
            let free = memory.free();
            let duplicate = memory.watches.duplicate(&watch, &[AT]);
            let launched = memory.launch(&duplicate);
            free.join().expect("no panic");
            memory.has_ended(&duplicate, launched);
        });
    }
}

/// Two threads end their watches of one allocation while a third frees it.
#[test]
fn nothing_is_left_of_watches_that_have_ended() {
    loom::model(|| {
        let memory = Memory::new();
        let end = || {
            let watch = memory.watches.start();
            memory.watches.limit(&watch, &[AT, AT + 1]);
            memory.watches.limit(&watch, &[AT, AT + 2]);
            let (left, memory) = (Arc::downgrade(&watch), memory.clone());
            let ends = move || {
                memory.launch(&watch);
                memory.watches.end(&watch);
            };
            (left, thread::spawn(ends))
        };
        let (left, ends): (Vec<_>, Vec<_>) = [end(), end()].into_iter().unzip();
        memory.watches.before_free(AT, |()| {});
        for ends in ends {
            ends.join().expect("no panic");
        }
        assert!(left.iter().all(|watch| watch.strong_count() == 0), "the last owner frees a watch");
        assert!((AT..AT + 3).all(|allocation| !memory.watches.knows(allocation)));
    });
}
