//! Launches of `log_softmax.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::{kernels, strided};

kernels! {
    /// For each row the logarithm of its softmax at its class.
    LogSoftmaxAt<T, I> = "opara_reduction_log_softmax_at_" for [f16 bf16 f32] {
        rows: grid [0], columns: u32, pitch: usize,
        x: wide in T [strided([rows], [pitch], columns)],
        classes: in I [rows],
        y: out f32 [rows],
    }

    /// The gradient of the rows. Zeros are behind them, up to `pitch` elements.
    LogSoftmaxAtGradient<T, I> = "opara_softmax_log_softmax_at_gradient_" for [f16 bf16 f32] {
        rows: grid [0], numel: usize, columns: u32, pitch: usize,
        x: wide in T [strided([rows], [pitch], columns)],
        classes: in I [rows],
        gradient: in f32 [rows],
        y: out T [numel],
    }
}

/// A block for each row, of threads for vectors of `wide` elements.
pub(super) fn of_rows(rows: usize, columns: usize, wide: usize) -> LaunchConfig {
    let threads = columns.div_ceil(wide).next_multiple_of(32).min(1024);
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}
