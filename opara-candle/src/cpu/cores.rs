//! The cores that operators may use.

use std::num::NonZero;
use std::sync::OnceLock;

/// The number of threads that operators may use. candle counts the machine's cores; this process may have fewer, by its
/// affinity or its container. Counted once, as rayon does: the system reads files for it, which takes longer than a small operator.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| {
        let allowed = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        candle::utils::get_num_threads().clamp(1, allowed)
    })
}
