//! Labels of launches: scopes of layers and operators. `span_labels` makes scopes of `tracing` spans.
//!
//! A scope costs one thread-local read unless something records on this thread.

use std::cell::RefCell;
use std::sync::Arc;

/// Reads where a capture has got to.
type Position = Arc<dyn Fn() -> usize + Send + Sync>;

#[derive(Default)]
struct Recording {
    path: Vec<String>,
    position: Option<Position>,
    marks: Vec<(usize, String)>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

pub(super) fn change(edit: impl FnOnce(&mut Vec<String>)) -> bool {
    RECORDING.with_borrow_mut(|recording| {
        let Some(recording) = recording else { return false };
        edit(&mut recording.path);
        if let Some(position) = recording.position.clone() {
            recording.marks.push((position(), recording.path.join("/")));
        }
        true
    })
}

/// Leaves its scope when dropped.
#[must_use = "the scope ends when this guard is dropped"]
pub struct Scope(bool);

impl Drop for Scope {
    fn drop(&mut self) {
        if self.0 {
            change(|path| drop(path.pop()));
        }
    }
}

/// Enters a scope: launches on this thread carry its name until the guard is dropped.
pub fn scope(name: &str) -> Scope {
    let active = RECORDING.with_borrow(Option::is_some);
    Scope(active && change(|path| path.push(name.into())))
}

/// The scopes that are open on this thread, `/` between them.
pub(crate) fn path() -> String {
    RECORDING.with_borrow(|r| r.as_ref().map(|r| r.path.join("/")).unwrap_or_default())
}

/// Runs `f` with scopes recorded and returns, beside its result, every change of the path, with the `position` of the
/// capture at that time.
pub(crate) fn record<T>(position: Option<Position>, f: impl FnOnce() -> T) -> (T, Vec<(usize, String)>) {
    struct Restore(Option<Recording>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDING.set(self.0.take());
        }
    }
    let _restore = Restore(RECORDING.replace(Some(Recording { position, ..Default::default() })));
    let result = f();
    let marks = RECORDING.with_borrow_mut(|r| r.as_mut().map(|r| std::mem::take(&mut r.marks)).unwrap_or_default());
    (result, marks)
}

/// A thread's recording of scopes on its way to another thread.
pub(crate) struct Suspended(Option<Recording>);

impl Suspended {
    /// Takes this thread's recording away, if there is one.
    pub fn take() -> Self {
        Self(RECORDING.take())
    }

    /// Goes on with it on this thread while `f` runs.
    pub fn resume<T>(self, f: impl FnOnce() -> T) -> (T, Self) {
        let own = RECORDING.replace(self.0);
        let result = f();
        (result, Self(RECORDING.replace(own)))
    }

    /// Gives it back to the thread that it was taken from.
    pub fn restore(self) {
        RECORDING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn scopes_mark_the_launch_from_which_they_hold() {
        let launches = Arc::new(AtomicUsize::new(0));
        let seen = launches.clone();
        let (_, marks) = record(Some(Arc::new(move || seen.load(Ordering::Relaxed))), || {
            let _outer = scope("layer");
            launches.store(2, Ordering::Relaxed);
            {
                let _inner = scope("query");
                launches.store(3, Ordering::Relaxed);
                assert_eq!(path(), "layer/query");
            }
            launches.store(5, Ordering::Relaxed);
        });
        assert_eq!(marks, [(0, "layer".into()), (2, "layer/query".into()), (3, "layer".into()), (5, String::new())]);
        assert_eq!(path(), "", "nothing is recorded outside");
    }
}
