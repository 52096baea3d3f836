//! Launches of `batch_norm.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Moments of the columns, for each share of the rows.
    BatchMoments<T> = "opara_reduction_batch_moments_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, shares: grid [1],
        x: in T [rows * columns],
        moments: out f32 [2 * shares * columns],
    }

    /// Means and variances by the moments of all shares.
    BatchTotals<T> = "opara_reduction_batch_totals_" for [f32] {
        rows: usize, columns: u32, share: u32, shares: u32,
        moments: in T [2 * shares * columns],
        y: out T [2 * columns],
    }

    /// Sums of a gradient and of its products with the normalised rows, for each share of the rows.
    BatchGradient<T> = "opara_reduction_batch_gradient_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, eps: f32, shares: grid [1],
        x: in T [rows * columns],
        gradient: in T [rows * columns],
        mean: in f32 [columns],
        variance: in f32 [columns],
        sums: out f32 [2 * shares * columns],
    }
}
