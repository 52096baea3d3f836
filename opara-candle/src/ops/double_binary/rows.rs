//! Rows of two operands that broadcast.

/// `THREADS` of `double_binary.cu`, and the elements of a block.
pub(super) const THREADS: usize = 256;
const ELEMENTS: usize = THREADS * 8;

/// Rows of two operands and their result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// The rows have three dimensions; the last length is that of a row.
    pub dims: [usize; 4],
    /// Elements from one of a dimension to the next, of `x` and of `y`.
    pub strides: [[usize; 4]; 2],
}

impl Rows {
    /// `None` if there are more dimensions, rows are too short for a block each, or elements do not lie beside each other in them.
    pub fn of(dims: &[usize], strides: [&[usize]; 2]) -> Option<Self> {
        const SHORT: usize = 64;
        let mut merged: Vec<(usize, [usize; 2])> = Vec::new();
        for (at, &dim) in dims.iter().enumerate().filter(|(_, &dim)| dim != 1) {
            let steps = strides.map(|of| of[at]);
            match merged.last_mut() {
                Some((above, of_above)) if (0..2).all(|of| of_above[of] == steps[of] * dim) => {
                    (*above, *of_above) = (*above * dim, steps);
                }
                _ => merged.push((dim, steps)),
            }
        }
        let (columns, steps) = *merged.last()?;
        let are_rows = columns >= SHORT && steps.iter().all(|step| *step <= 1);
        let missing = 4usize.checked_sub(merged.len()).filter(|_| are_rows)?;
        let all: Vec<_> = std::iter::repeat_n((1, [0, 0]), missing).chain(merged).collect();
        let dim = |at: usize| all[at].0;
        let of = |operand: usize| [0, 1, 2, 3].map(|at| all[at].1[operand]);
        let rows = Self { dims: [0, 1, 2, 3].map(dim), strides: [of(0), of(1)] };
        rows.blocks().map(|_| rows)
    }

    /// Elements of the result.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Blocks of the grid, if they can be counted and a row's elements fit into 31 bits.
    pub fn blocks(&self) -> Option<usize> {
        let [outer, middle, inner, columns] = self.dims;
        let parts = columns.div_ceil(ELEMENTS);
        let blocks = [outer, middle, inner].into_iter().try_fold(parts, usize::checked_mul);
        blocks.filter(|&blocks| blocks > 0 && blocks <= i32::MAX as usize && columns <= i32::MAX as usize)
    }
}
