//! Threads that stay awake during a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a thread that finds nothing to do stays awake.
const PATIENCE: Duration = Duration::from_micros(500);

/// Threads that are kept awake at most. Polling for work slows those who have some.
const HELPERS: usize = 7;

/// Is there a call with helpers? A second one at the same time has none: its whole work would be a task among those that the first
/// one's threads take while they wait.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The threads, as many as rayon's pool has; `None` if the system starts none. Not rayon's pool, all of whose threads may wait for a
/// lock that the caller holds.
fn team() -> Option<&'static rayon::ThreadPool> {
    static TEAM: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let start = || rayon::ThreadPoolBuilder::new().thread_name(|i| format!("opara-team-{i}")).build().ok();
    TEAM.get_or_init(start).as_ref()
}

/// Runs `f`, which runs many operators one after another, on a thread of the team, and keeps its other threads awake meanwhile.
/// Waking them for each operator, and the caller after it, takes as long as a small operator.
pub(super) fn awake<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let threads = rayon::current_num_threads();
    if threads < 2 || rayon::current_thread_index().is_some() {
        return f();
    }
    let Some(team) = team().filter(|_| !IS_TAKEN.swap(true, Ordering::Acquire)) else { return f() };
    let _free = Setting { flag: &IS_TAKEN, to: false };
    let is_over = AtomicBool::new(false);
    team.scope(|scope| {
        (1..threads.min(HELPERS + 1)).for_each(|_| scope.spawn(|_| help(&is_over)));
        let _over = Setting { flag: &is_over, to: true };
        f()
    })
}

/// Takes tasks of this pool until the call is over.
fn help(is_over: &AtomicBool) {
    let mut idle = Instant::now();
    while !is_over.load(Ordering::Relaxed) && idle.elapsed() < PATIENCE {
        match rayon::yield_now() {
            Some(rayon::Yield::Executed) => idle = Instant::now(),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Sets a flag when it is dropped, which a panic does, too.
struct Setting<'a> {
    flag: &'a AtomicBool,
    to: bool,
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.flag.store(self.to, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use rayon::iter::{IntoParallelIterator, ParallelIterator};

    use super::*;

    #[test]
    fn calls_inside_calls_and_after_panics_give_their_results() {
        let sum = || (0..1_000u64).into_par_iter().sum::<u64>();
        assert_eq!(awake(|| awake(sum) + sum()), 999_000);
        assert!(catch_unwind(AssertUnwindSafe(|| awake(|| panic!("on purpose")))).is_err());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| assert_eq!(awake(sum), 499_500)));
            }
        });
    }
}
