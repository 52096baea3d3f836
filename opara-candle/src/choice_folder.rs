//! The folder in which choices among implementations of an operator are kept on disk, while an executor is built.
//!
//! Operators choose whenever they are first called, also outside of any executor; then nothing is kept.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

thread_local! {
    static FOLDER: RefCell<Option<Arc<Path>>> = const { RefCell::new(None) };
}

/// The folder for choices that are made on this thread now.
pub(crate) fn current() -> Option<Arc<Path>> {
    FOLDER.with_borrow(Clone::clone)
}

/// Runs `f` with this folder for choices that it makes on this thread, or on a capture thread for it.
pub(crate) fn within<R>(folder: Option<Arc<Path>>, f: impl FnOnce() -> R) -> R {
    /// Also if `f` panics.
    struct Restored(Option<Arc<Path>>);
    impl Drop for Restored {
        fn drop(&mut self) {
            FOLDER.set(self.0.take());
        }
    }
    let _before = Restored(FOLDER.replace(folder));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture_thread;

    #[test]
    fn a_folder_is_used_inside_and_on_capture_threads_alone() {
        let of = |name: &str| Some(Arc::from(Path::new(name)));
        assert_eq!(current(), None);
        within(of("outer"), || {
            within(of("inner"), || assert_eq!(current(), of("inner")));
            let panics = std::panic::catch_unwind(|| within(None, || panic!("for the test")));
            assert_eq!((panics.is_err(), current()), (true, of("outer")));
            assert_eq!(capture_thread::run(|| Ok(current())).expect("no panic"), of("outer"));
        });
        assert_eq!((current(), capture_thread::run(|| Ok(current())).expect("no panic")), (None, None));
    }
}
