//! Launches of `cross_entropy.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// The loss of each row, and behind the losses the logarithms of the rows' sums of exponentials.
    CrossEntropy<T, I> = "opara_reduction_cross_entropy_" for [f16 bf16 f32] {
        columns: u32, ignored: i64, smoothing: f32, rows: grid [0],
        logits: vector in T [rows * columns],
        targets: in I [rows],
        losses: out f32 [2 * rows],
    }

    /// The mean of the losses that count. The reciprocal of their number takes the place of the first loss.
    MeanLoss<I> = "opara_reduction_mean_loss_" for [u32 i64] {
        rows: u32, ignored: i64,
        targets: in I [rows],
        losses: cache f32 [rows],
        y: out f32 [1],
    }

    /// The gradient of the logits.
    CrossEntropyGradient<T, I> = "opara_softmax_cross_entropy_gradient_" for [f16 bf16 f32] {
        columns: u32, ignored: i64, smoothing: f32, rows: grid [0],
        logits: vector in T [rows * columns],
        targets: in I [rows],
        losses: in f32 [2 * rows],
        gradient: in f32 [1],
        y: out T [rows * columns],
    }
}

/// A block for each row, of threads for vectors of `wide` elements.
pub(super) fn of_rows(rows: usize, columns: usize, wide: usize) -> LaunchConfig {
    let threads = columns.div_ceil(wide).next_multiple_of(32).min(1024);
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}

/// One block.
pub(super) const ONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1024, 1, 1), shared_mem_bytes: 0 };
