//! Launches of `embedding.cu`.

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
}
