//! Launches of `argmax.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;
use crate::cuda::operator::rows::MAX_THREADS;

kernels! {
    /// The index of the largest element of each row.
    Argmax<T> = "opara_reduction_argmax_" for [f16 bf16 f32 f64] {
        rows: u32, columns: u32,
        x: vector in T [rows * columns],
        y: out u32 [rows],
    }
}

/// One block per row, with enough whole warps for the row, up to the limit of a block.
pub(super) fn block_of_row(rows: usize, columns: usize, wide: usize) -> LaunchConfig {
    let threads = columns.div_ceil(wide).next_multiple_of(32).min(MAX_THREADS);
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}
