//! Rows of elements, and the launches of kernels over them.

use candle::DType;
use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::wide;

const WARP: usize = 32;
/// Threads that work on a row at most (`rows.cuh`); they then do so again and again.
pub(crate) const MOST: usize = 1024;

/// Rows of elements, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    rows: usize,
    /// Elements of each.
    columns: usize,
}

impl Rows {
    /// Along the last dimension; `None` if there are more or longer ones than kernels count.
    pub fn of(dims: &[usize]) -> Option<Self> {
        const COUNTED: usize = i32::MAX as usize;
        let (&columns, rest) = dims.split_last()?;
        let rows = rest.iter().product();
        (rows <= COUNTED && columns <= COUNTED).then_some(Self { rows, columns })
    }

    /// Whether 32 bits count all elements.
    pub fn are_countable(&self) -> bool {
        self.rows.checked_mul(self.columns).is_some_and(|elements| elements <= i32::MAX as usize)
    }

    /// How many they are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of each.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements of all.
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// The launch of a kernel over rows (`rows.cuh`): part of a warp for each if that is enough, else a block.
    pub fn by_blocks(&self, dtype: DType) -> LaunchConfig {
        let loads = self.columns.div_ceil(wide(dtype));
        self.by(if loads <= WARP { loads.next_power_of_two() } else { loads.next_multiple_of(WARP).min(MOST) })
    }

    /// The same, but for a warp where rows are many.
    pub fn by_warps_or_blocks(&self, dtype: DType) -> LaunchConfig {
        /// Rows that fill a GPU by a warp each, and the longest that a warp is not too slow for.
        const MANY: usize = 1024;
        const LONG: usize = 1024;
        let loads = self.columns.div_ceil(wide(dtype));
        match loads > WARP && self.rows >= MANY && self.columns <= LONG {
            true => self.by(WARP),
            false => self.by_blocks(dtype),
        }
    }

    fn by(&self, threads: usize) -> LaunchConfig {
        /// Threads of a block that has several rows.
        const BLOCK: usize = 128;
        let together = if threads <= WARP { BLOCK / threads } else { 1 };
        let blocks = self.rows.div_ceil(together);
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, together as u32, 1),
            shared_mem_bytes: 0,
        }
    }
}
