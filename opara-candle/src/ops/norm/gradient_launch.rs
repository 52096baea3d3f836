//! Launches of `norm_gradient.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;
use crate::cuda::operator::rows::Rows;

kernels! {
    /// The gradient of `x` before a layer norm, and for each block the sums of those of scale and shift over its rows.
    LayerNormGradient<T> = "opara_norm_gradient_layer_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, blocks: grid [0],
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        gradient: vector in T [rows * columns],
        sums: cache f32 [2 * blocks * columns],
        y: out T [rows * columns],
    }

    /// The same of an RMS norm, without a shift.
    RmsNormGradient<T> = "opara_norm_gradient_rms_" for [f16 bf16 f32] {
        rows: usize, columns: u32, eps: f32, blocks: grid [0],
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        gradient: vector in T [rows * columns],
        sums: cache f32 [blocks * columns],
        y: out T [rows * columns],
    }
}

/// The vectors that a thread holds, and the launch; `None` for rows that are longer than the kernels take. `wide` elements are a vector.
pub(super) fn launch_of(of: Rows, wide: usize) -> Option<(usize, LaunchConfig)> {
    const THREADS: usize = 256;
    const WARP: usize = 32;
    let vectors = of.columns().div_ceil(wide);
    let held = match vectors {
        _ if vectors <= THREADS => 1,
        _ if vectors <= 4 * THREADS => 4,
        _ => return None,
    };
    // Few rows a block, so that their loads overlap with other blocks' sums, but not too many blocks for the second stage.
    let blocks = of.rows().div_ceil(8).clamp(of.rows().min(256), 1024);
    let threads = vectors.div_ceil(held).next_multiple_of(WARP);
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 };
    Some((held, config))
}
