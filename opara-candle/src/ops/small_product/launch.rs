//! Launches of `small_product.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::{kernels, wide};
use candle::DType;

kernels! {
    /// `after(before(x) * weight^T + bias)`.
    SmallProduct<T> = "opara_matmul_small_product_" for [f32] {
        rows: u32, inner: u32, columns: u32, depth: u32, before: i32, after: i32,
        x: vector in T [rows * inner],
        weight: early vector in T [columns * inner],
        bias: opt T [columns],
        y: out T [rows * columns],
    }

    /// The gradients of weight and bias, one behind the other.
    SmallWeightGradient<T> = "opara_matmul_small_weight_gradient_" for [f32] {
        rows: u32, inner: u32, columns: u32, depth: u32, before: i32,
        gradient: in T [rows * columns],
        x: in T [rows * inner],
        y: out T [columns * inner + columns],
    }

    /// The same, and behind them that of `x`.
    SmallGradients<T> = "opara_matmul_small_gradients_" for [f32] {
        rows: u32, inner: u32, columns: u32, depth: u32, depth_of_x: u32, before: i32,
        gradient: vector in T [rows * columns],
        x: in T [rows * inner],
        weight: in T [columns * inner],
        y: out T [columns * inner + columns + rows * inner],
    }
}

/// Warps of a block.
const WARPS: usize = 8;

/// Rows of both operands in a tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile([usize; 2]);

/// As in `small_product.cu`.
pub(super) const FEW: Tile = Tile([8, 16]);
pub(super) const MANY: Tile = Tile([16, 32]);

impl Tile {
    /// Tiles of a result of these rows and columns, down and across.
    pub fn tiles(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        [rows.div_ceil(self.0[0]), columns.div_ceil(self.0[1])]
    }

    /// Elements of the inner dimension that a block has at once.
    pub fn depth(self, inner: usize) -> usize {
        /// Operands are then 99 and 50 KB.
        const MOST: [usize; 2] = [1024, 256];
        inner.next_multiple_of(wide(DType::F32)).min(MOST[usize::from(self.0[0] > FEW.0[0])])
    }

    /// Bytes of shared memory for the operands, and then for the sums of all warps.
    pub fn shared(self, depth: usize) -> usize {
        let [m, n] = self.0;
        let pitch = depth.next_multiple_of(32) + wide(DType::F32);
        ((m + n) * pitch).max(WARPS * m * n) * size_of::<f32>()
    }
}

pub(super) fn of_blocks([across, down]: [usize; 2], shared: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (across as u32, down as u32, 1),
        block_dim: (32 * WARPS as u32, 1, 1),
        shared_mem_bytes: shared as u32,
    }
}
