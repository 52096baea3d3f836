//! How many threads candle uses on a CPU.

const THREADS: &str = "RAYON_NUM_THREADS";

/// Bounds the threads that candle and rayon use for arithmetic: to `threads`, or else to the cores that this process may use,
/// unless the environment variable `RAYON_NUM_THREADS` is set.
///
/// candle counts the machine's cores. In a container or with an affinity the process may use fewer, and matmuls on the CPU become
/// several times slower. Programs call this first in `main`: it sets that variable, which other threads may read, and which counts
/// at the first use of candle and rayon.
pub fn bound_threads(threads: Option<usize>) {
    let allowed = || match std::env::var_os(THREADS) {
        None => std::thread::available_parallelism().ok().map(usize::from),
        Some(_) => None,
    };
    if let Some(threads) = threads.map(|threads| threads.max(1)).or_else(allowed) {
        std::env::set_var(THREADS, threads.to_string());
    }
}
