//! Rows of elements, and launch shapes of row-wise kernels.

use candle::DType;
use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::wide;

const WARP: usize = 32;
/// Maximum threads per row (`rows.cuh`). Threads of longer rows take several vectors.
pub(crate) const MAX_THREADS: usize = 1024;

/// Contiguous rows of elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    rows: usize,
    /// Elements per row.
    columns: usize,
}

impl Rows {
    /// Rows along the last dimension; `None` if their number or length exceeds 31 bits.
    pub fn of(dims: &[usize]) -> Option<Self> {
        const COUNTED: usize = i32::MAX as usize;
        let (&columns, rest) = dims.split_last()?;
        let rows = rest.iter().product();
        (rows <= COUNTED && columns <= COUNTED).then_some(Self { rows, columns })
    }

    /// Does the number of elements fit into 31 bits?
    pub fn are_countable(&self) -> bool {
        self.rows.checked_mul(self.columns).is_some_and(|elements| elements <= i32::MAX as usize)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements of all rows.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The launch of a row-wise kernel (`rows.cuh`): part of a warp per row if that is enough, otherwise a block per
    /// row.
    pub fn by_blocks(&self, dtype: DType) -> LaunchConfig {
        let loads = self.columns.div_ceil(wide(dtype));
        self.by(if loads <= WARP { loads.next_power_of_two() } else { loads.next_multiple_of(WARP).min(MAX_THREADS) })
    }

    /// The same, but one warp per row if there are many rows.
    pub fn by_warps_or_blocks(&self, dtype: DType) -> LaunchConfig {
        /// From this many rows on, one warp per row fills the GPU; up to this length, a warp is fast enough.
        const MANY: usize = 1024;
        const LONG: usize = 1024;
        let loads = self.columns.div_ceil(wide(dtype));
        match loads > WARP && self.rows >= MANY && self.columns <= LONG {
            true => self.by(WARP),
            false => self.by_blocks(dtype),
        }
    }

    fn by(&self, threads: usize) -> LaunchConfig {
        /// Threads of a block with several rows.
        const BLOCK: usize = 128;
        let rows_per_block = if threads <= WARP { BLOCK / threads } else { 1 };
        let blocks = self.rows.div_ceil(rows_per_block);
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, rows_per_block as u32, 1),
            shared_mem_bytes: 0,
        }
    }
}
