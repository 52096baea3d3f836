//! Launches of `embedding.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// The rows of a table at each id; the largest value of `I` gives zeros. An id beyond the table fails on the GPU, as with candle: after
    /// that the process cannot use the GPU any more.
    Embedding<T, I> = "opara_gather_embedding_" for [f16 bf16 f32 f64] {
        numel: u32, columns: u32, rows: usize,
        ids: in I [numel / columns],
        table: tested vector in T [rows.saturating_mul(columns)],
        y: out T [numel],
    }

    /// The gradient of the table, whose rows are zeros before, from that of the rows at each id.
    EmbeddingGradient<T, I> = "opara_gather_embedding_gradient_" for [f16 bf16 f32 f64] {
        count: u32, columns: u32, rows: usize,
        ids: in I [count],
        gradient: in T [count * columns],
        y: kept T [rows * columns],
    }
}

/// The launch of [`EmbeddingGradient`]: blocks of 128 threads, a row of them for each place, with four columns a thread.
pub(super) fn of_places(count: usize, columns: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (count as u32, columns.div_ceil(4 * 128) as u32, 1),
        block_dim: (128, 1, 1),
        shared_mem_bytes: 0,
    }
}
