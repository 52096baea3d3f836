//! Launches of `range_means.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// The mean of the rows of each range.
    RangeMeans<T> = "opara_reduction_range_means_" for [f16 bf16 f32] {
        rows: u32, columns: u32, count: grid [1],
        x: wide in T [rows * columns],
        ranges: wide in u32 [2 * count],
        y: out f32 [count * columns],
    }
}

/// Ranges of a launch: blocks along an axis of the grid.
pub(super) const MOST: usize = 65_535;

/// Vectors of a block, and rows of it at a time (`ACROSS` and `DOWN`).
const ACROSS: usize = 32;
const DOWN: usize = 8;

/// Blocks of some vectors of `wide` columns, of one range each.
pub(super) fn config(columns: usize, wide: usize, count: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (columns.div_ceil(wide * ACROSS) as u32, count as u32, 1),
        block_dim: (ACROSS as u32, DOWN as u32, 1),
        shared_mem_bytes: 0,
    }
}
