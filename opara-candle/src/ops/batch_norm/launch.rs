//! Launches of `batch_norm.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;
use crate::ops::column_sums::launch::Shares;

kernels! {
    /// Moments of the columns, for each share of the rows.
    BatchMoments<T> = "opara_reduction_batch_moments_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, shares: grid [1],
        x: vector in T [rows * columns],
        moments: out f32 [2 * shares * columns],
    }

    /// Means and variances by the moments of all shares.
    BatchTotals<T> = "opara_reduction_batch_totals_" for [f32] {
        rows: usize, columns: u32, share: u32, shares: u32,
        moments: in T [2 * shares * columns],
        y: out T [2 * columns],
    }

    /// Rows that are normalised, with scale and shift if there are any, and an activation.
    BatchNorm<T> = "opara_norm_batch_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, activation: i32,
        x: vector in T [rows * columns],
        mean: in f32 [columns],
        variance: in f32 [columns],
        scale: opt T [columns],
        shift: opt T [columns],
        y: out T [rows * columns],
    }

    /// The gradient of the rows, by the sums of [`BatchGradient`].
    BatchNormGradient<T> = "opara_norm_batch_gradient_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, activation: i32,
        x: vector in T [rows * columns],
        gradient: vector in T [rows * columns],
        mean: in f32 [columns],
        variance: in f32 [columns],
        scale: opt T [columns],
        shift: opt T [columns],
        sums: in f32 [2 * columns],
        y: out T [rows * columns],
    }

    /// Sums of a gradient before the activation, and of its products with the normalised rows, for each share of the rows.
    BatchGradient<T> = "opara_reduction_batch_gradient_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, eps: f32, activation: i32, shares: grid [1],
        x: vector in T [rows * columns],
        gradient: vector in T [rows * columns],
        mean: in f32 [columns],
        variance: in f32 [columns],
        scale: opt T [columns],
        shift: opt T [columns],
        sums: out f32 [2 * shares * columns],
    }
}

/// A launch whose threads have some vectors of a row each, and go through rows.
pub(super) fn of_vectors(rows: usize, vectors: usize) -> LaunchConfig {
    /// Threads of a block, the rows that a thread has at least, and the most blocks down.
    const THREADS: usize = 256;
    const ROWS: usize = 4;
    const MOST: usize = 2048;
    let across = vectors.clamp(1, THREADS);
    let down = THREADS / across;
    let blocks = rows.div_ceil(down * ROWS).clamp(1, MOST);
    LaunchConfig {
        grid_dim: (vectors.div_ceil(across) as u32, blocks as u32, 1),
        block_dim: (across as u32, down as u32, 1),
        shared_mem_bytes: 0,
    }
}

/// Shares of the rows, the launch that sums over them, and the beginning of the variant's name. Threads may have `by` columns each.
pub(super) fn of_shares(rows: usize, columns: usize, by: usize) -> (Shares, LaunchConfig, &'static str) {
    /// Of fewer elements blocks with more threads are faster (H200).
    const MANY: usize = 1 << 20;
    if by > 1 && rows * columns >= MANY {
        let (shares, config) = Shares::of_both(rows, columns / by);
        return (shares, config, "wide_");
    }
    let shares = Shares::of(rows);
    (shares, shares.config(columns), "")
}
