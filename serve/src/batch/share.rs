//! A worker's share of the process's cores.

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Threads of one worker, for batches that run beside those of other workers. Each worker multiplying on all cores would have
/// them wait for each other at every operator; a batch on a core of its own waits for nobody.
pub(super) struct Share(Option<ThreadPool>);

impl Share {
    /// One of so many shares.
    pub fn of(workers: usize) -> Self {
        let threads = (rayon::current_num_threads() / workers.max(1)).max(1);
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|_| "opara-batch".into()).build();
        if let Err(error) = &pool {
            tracing::warn!(%error, "a worker has no threads of its own: it uses all cores");
        }
        Self(pool.ok())
    }

    /// No share: batches use all cores.
    pub fn none() -> Self {
        Self(None)
    }

    /// Runs `f` on these threads.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }
}
