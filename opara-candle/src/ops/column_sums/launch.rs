//! Launches of `column_sums.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Sums of the columns, for each share of the rows.
    ColumnSums<T> = "opara_reduction_column_sums_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, shares: grid [1],
        x: vector in T [rows * columns],
        sums: out f32 [shares * columns],
    }

    /// The sums of all shares; several sets of them lie one behind the other.
    ColumnTotals<T> = "opara_reduction_column_totals_" for [f16 bf16 f32] {
        rows: u32, columns: u32, sets: grid [2],
        sums: in f32 [sets * rows * columns],
        y: out T [sets * columns],
    }

    /// The gradient before an activation of `x`, and the sums of its columns, for each share of the rows.
    ActivationGradient<T> = "opara_elementwise_activation_gradient_" for [f16 bf16 f32] {
        rows: usize, columns: u32, share: u32, activation: i32, shares: grid [1],
        x: vector in T [rows * columns],
        gradient: vector in T [rows * columns],
        sums: cache f32 [shares * columns],
        y: out T [rows * columns],
    }
}

/// Rows and columns of a block, and rows of one whose threads have vectors of columns.
const SIDE: usize = 32;
const DEEP: usize = 8;

/// How rows are shared among blocks.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Shares {
    /// Rows of a share.
    pub rows: usize,
    /// How many there are.
    pub count: usize,
}

impl Shares {
    /// Enough to fill a GPU, but few enough to be summed again.
    pub fn of(rows: usize) -> Self {
        let share = rows.div_ceil(512).max(2 * SIDE);
        Self { rows: share, count: rows.div_ceil(share) }
    }

    /// The same for blocks whose threads have vectors of `wide` columns, and whether rows are such vectors.
    pub fn of_vectors(rows: usize, columns: usize, wide: usize) -> Option<Self> {
        /// Blocks that fill a GPU several times.
        const BLOCKS: usize = 1024;
        let across = columns.div_ceil(wide * SIDE);
        let share = rows.div_ceil((BLOCKS / across).clamp(1, 256)).max(4 * DEEP);
        columns.is_multiple_of(wide).then(|| Self { rows: share, count: rows.div_ceil(share) })
    }

    pub fn config_of_vectors(self, columns: usize, wide: usize) -> LaunchConfig {
        LaunchConfig {
            grid_dim: (columns.div_ceil(wide * SIDE) as u32, self.count as u32, 1),
            block_dim: (SIDE as u32, DEEP as u32, 1),
            shared_mem_bytes: 0,
        }
    }

    /// For blocks that sum two numbers of each column, with the launch: threads have vectors of columns, of which a row has some, and
    /// blocks as many rows at a time as then fit.
    pub fn of_both(rows: usize, vectors: usize) -> (Self, LaunchConfig) {
        /// Threads of a block, the rows that one has at least, and blocks that fill a GPU.
        const THREADS: usize = 256;
        const ROWS: usize = 4;
        const BLOCKS: usize = 512;
        let across = vectors.clamp(1, SIDE);
        let (down, blocks) = (THREADS / across, vectors.div_ceil(across).max(1));
        let share = rows.div_ceil((BLOCKS / blocks).clamp(1, 256)).max(ROWS * down);
        let shares = Self { rows: share, count: rows.div_ceil(share) };
        let config = LaunchConfig {
            grid_dim: (blocks as u32, shares.count as u32, 1),
            block_dim: (across as u32, down as u32, 1),
            shared_mem_bytes: 0,
        };
        (shares, config)
    }

    pub fn config(self, columns: usize) -> LaunchConfig {
        of_columns(columns, self.count, 1)
    }
}

pub(in crate::ops) fn of_columns(columns: usize, shares: usize, sets: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (columns.div_ceil(SIDE) as u32, shares as u32, sets as u32),
        block_dim: (SIDE as u32, SIDE as u32, 1),
        shared_mem_bytes: 0,
    }
}
