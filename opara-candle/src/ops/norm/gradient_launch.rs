//! Launches of `norm_gradient.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;
use crate::cuda::operator::rows::Rows;

kernels! {
    /// The gradient of `x` before a layer norm, plus another one, and for each block the sums of those of scale and shift over its rows.
    LayerNormGradient<T> = "opara_norm_gradient_layer_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, blocks: grid [0],
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        gradient: vector in T [rows * columns],
        beside: vector opt T [rows * columns],
        sums: cache f32 [2 * blocks * columns],
        y: out T [rows * columns],
    }

    /// The same of an RMS norm, without a shift.
    RmsNormGradient<T> = "opara_norm_gradient_rms_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, blocks: grid [0],
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        gradient: vector in T [rows * columns],
        beside: vector opt T [rows * columns],
        sums: cache f32 [blocks * columns],
        y: out T [rows * columns],
    }

    /// The gradient of `x` alone, and each row's mean, which is zero of an RMS norm, and the reciprocal of its deviation, where a warp has a row
    /// of whole vectors. The variant begins with the kind of the norm.
    RowsGradient<T> = "opara_norm_rows_gradient_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32,
        x: wide in T [rows * columns],
        scale: wide in T [columns],
        gradient: wide in T [rows * columns],
        beside: wide opt T [rows * columns],
        moments: cache f32 [2 * rows],
        y: out T [rows * columns],
    }

    /// For each share of the rows the sums of the gradients of scale and shift.
    LayerColumnsGradient<T> = "opara_reduction_norm_gradient_layer_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, shares: grid [1],
        x: wide in T [rows * columns],
        gradient: wide in T [rows * columns],
        moments: wide in f32 [2 * rows],
        sums: out f32 [2 * shares * columns],
    }

    /// The same of an RMS norm, without a shift.
    RmsColumnsGradient<T> = "opara_reduction_norm_gradient_rms_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, shares: grid [1],
        x: wide in T [rows * columns],
        gradient: wide in T [rows * columns],
        moments: wide in f32 [2 * rows],
        sums: out f32 [shares * columns],
    }
}

const THREADS: usize = 256;
const WARP: usize = 32;

fn config(blocks: usize, threads: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}

/// The vectors that a lane holds, and the launch, for rows of whole vectors of `wide` elements; `None` if they are too long for a warp.
pub(super) fn of_warps(of: Rows, wide: usize) -> Option<(usize, LaunchConfig)> {
    const WARPS: usize = THREADS / WARP;
    /// Blocks that a GPU runs at once.
    const BLOCKS: usize = 1024;
    let held = (of.columns() / wide).div_ceil(WARP);
    let fits = of.columns().is_multiple_of(wide) && held <= 4;
    fits.then(|| (held, config(of.rows().div_ceil(WARPS).min(BLOCKS), THREADS)))
}

/// The vectors that a thread holds, and the launch; `None` for rows that are longer than the kernels take. `wide` elements are a vector.
pub(super) fn of_blocks(of: Rows, wide: usize) -> Option<(usize, LaunchConfig)> {
    let vectors = of.columns().div_ceil(wide);
    let held = match vectors {
        _ if vectors <= THREADS => 1,
        _ if vectors <= 4 * THREADS => 4,
        _ => return None,
    };
    // Few rows a block, so that their loads overlap with other blocks' sums, but not too many blocks for the second stage.
    let blocks = of.rows().div_ceil(8).clamp(of.rows().min(256), 1024);
    Some((held, config(blocks, vectors.div_ceil(held).next_multiple_of(WARP))))
}
