//! The tile of one thread: which elements of a group's results it computes, and how it loads and stores them.

use cudarc::driver::LaunchConfig;
use opara_plan::fusion::StridedView;

use super::dtype::Type;

/// Maximum columns of a row.
pub(super) const COLUMNS: u64 = 4096;
/// Maximum threads of a block.
const THREADS: u32 = 1024;
/// Threads of a block without rows.
const BLOCK: u32 = 128;
/// From this many elements on a tile has four, and vector loads make even a single op faster. With fewer elements, more
/// threads are faster (H200).
pub(super) const MANY_ELEMENTS: u32 = 1 << 16;
/// From this many elements on tiles of 16 bytes are faster (H200).
const VERY_MANY_ELEMENTS: u32 = 1 << 20;
/// From this many rows on a tile has four elements.
const MANY_ROWS: u32 = 1024;
/// Threads of a warp.
const WARP: u32 = 32;
/// Rows of a block if one warp computes a row: a multiprocessor has room for more warps than blocks.
const ROWS: u32 = 4;

/// The elements that one thread computes: `ThreadTile` of `part.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadTile {
    /// The elements of all rows.
    pub elements: u32,
    /// The length of a row; 0 without rows.
    pub columns: u32,
    /// Rows per block.
    pub rows: u32,
    /// Elements per thread: a power of two, as vector loads are.
    pub n: u32,
    /// Threads per block, or per row of a block.
    pub block: u32,
}

impl ThreadTile {
    /// The tile for this many elements, in rows of `columns` if there are rows. `None` if the elements do not fit into 31 bits.
    pub fn of(elements: u64, columns: Option<u64>) -> Option<Self> {
        let elements = u32::try_from(elements).ok().filter(|&n| n <= i32::MAX as u32)?;
        Some(match columns {
            None => {
                let n = if elements < MANY_ELEMENTS { 1 } else { 4 };
                Self { elements, columns: 0, rows: 1, n, block: BLOCK }
            }
            Some(columns) => {
                let columns = u32::try_from(columns).ok()?;
                let all_rows = elements / columns;
                let n = if all_rows < MANY_ROWS { 2 } else { 4 };
                let n = columns.div_ceil(THREADS).next_power_of_two().max(n);
                let block = columns.div_ceil(n).next_multiple_of(WARP);
                let are_several = block == WARP && all_rows >= MANY_ROWS && all_rows.is_multiple_of(ROWS);
                Self { elements, columns, rows: if are_several { ROWS } else { 1 }, n, block }
            }
        })
    }

    /// A tile of 16 bytes of the widest type, where that is faster with vector loads.
    pub fn wider(self, widest: Type) -> Option<Self> {
        let n = 16 / widest.bytes() as u32;
        (self.columns == 0 && self.elements >= VERY_MANY_ELEMENTS && n > self.n).then_some(Self { n, ..self })
    }

    /// Are the elements of a tile contiguous?
    pub fn is_contiguous(self) -> bool {
        (if self.columns > 0 { self.columns } else { self.elements }).is_multiple_of(self.n)
    }

    /// Can a dense operand at this address be loaded and stored as vectors?
    pub fn is_aligned(self, address: u64, of: Type) -> bool {
        self.is_contiguous() && address.is_multiple_of(of.bytes() * u64::from(self.n))
    }

    /// The function of `part.cuh` that loads an operand.
    pub fn load(self, address: u64, of: Type, view: &StridedView) -> &'static str {
        let n = u64::from(self.n);
        let has_inner = |(dim, stride): (u64, u64), expected| dim.is_multiple_of(n) && stride == expected;
        let are_outer_aligned = || view.dims_and_strides().rev().skip(1).all(|(_, stride)| stride.is_multiple_of(n));
        match view.dims_and_strides().next_back() {
            None if self.is_aligned(address, of) => "load_vector",
            Some(inner) if self.is_contiguous() && has_inner(inner, 0) => "load_broadcast",
            Some(inner) if self.is_aligned(address, of) && has_inner(inner, 1) && are_outer_aligned() => "load_vector",
            _ => "load",
        }
    }

    /// The launch of a kernel with this tile per thread.
    pub fn config(self) -> LaunchConfig {
        let Self { elements, columns, rows, n, block } = self;
        let (blocks, shared_mem_bytes) = match columns {
            0 => (elements.div_ceil(n * block), 0),
            // candle's tree sums need one f32 per column, padded to a power of two.
            _ => (elements / columns / rows, rows * columns.next_power_of_two() * size_of::<f32>() as u32),
        };
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (block, rows, 1), shared_mem_bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tiles_are_larger_for_many_elements() {
        let launch = |elements, columns| {
            let tile = ThreadTile::of(elements, columns).unwrap();
            let config = tile.config();
            (tile.n, config.grid_dim.0, (config.block_dim.0, config.block_dim.1), config.shared_mem_bytes)
        };
        assert_eq!(launch(1000, None), (1, 8, (128, 1), 0));
        assert_eq!(launch(1 << 16, None), (4, 128, (128, 1), 0));
        assert_eq!(launch(1536 * 128, Some(128)), (4, 384, (32, 4), 2048));
        assert_eq!(launch(1538 * 100, Some(100)), (4, 1538, (32, 1), 512), "the number of rows is no multiple of four");
        assert_eq!(launch(10 * 1500, Some(1500)), (2, 10, (768, 1), 8192));
        assert_eq!(launch(10 * 3072, Some(3072)), (4, 10, (768, 1), 16384));
        assert_eq!(launch(COLUMNS, Some(COLUMNS)), (4, 1, (1024, 1), 16384));
        assert!(ThreadTile::of(1 << 31, None).is_none());
        let wider =
            |elements, columns, widest| ThreadTile::of(elements, columns).unwrap().wider(widest).map(|tile| tile.n);
        assert_eq!(wider(1 << 20, None, Type::F16), Some(8));
        assert_eq!(wider(1 << 20, None, Type::F32), None, "16 bytes hold four");
        assert_eq!(wider((1 << 20) - 1, None, Type::F16), None, "too few");
        assert_eq!(wider(1 << 20, Some(128), Type::F16), None, "rows");
    }

    #[test]
    fn contiguous_aligned_elements_are_loaded_as_vectors() {
        let load = |tile: ThreadTile, address, of, dims: &[u64], strides: &[u64]| {
            tile.load(address, of, &StridedView::new(dims, strides).unwrap())
        };
        let four = ThreadTile::of(1 << 20, None).unwrap();
        assert_eq!(load(four, 0x100, Type::F32, &[], &[]), "load_vector");
        assert_eq!(load(four, 0x108, Type::F16, &[], &[]), "load_vector");
        assert_eq!(load(four, 0x108, Type::F32, &[], &[]), "load", "not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[0, 1]), "load_vector");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1028, 1]), "load_vector");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1030, 1]), "load", "rows are not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1, 1 << 10]), "load", "transposed");
        assert_eq!(load(four, 0x102, Type::F16, &[1 << 10, 1 << 10], &[1, 0]), "load_broadcast");
        assert_eq!(load(four, 0x100, Type::F16, &[2, 1 << 18, 2], &[2, 4, 1]), "load", "runs of two elements");
        let eight = four.wider(Type::F16).unwrap();
        assert_eq!(load(eight, 0x110, Type::F16, &[], &[]), "load_vector");
        assert_eq!(load(eight, 0x108, Type::F16, &[], &[]), "load", "aligned for four");
        let odd = ThreadTile::of((1 << 20) + 1, None).unwrap();
        assert_eq!(load(odd, 0x100, Type::F32, &[], &[]), "load");
        assert!(!odd.is_contiguous() && !ThreadTile::of(5000 * 77, Some(77)).unwrap().is_contiguous());
    }

    proptest! {
        #[test]
        fn vector_loads_are_contiguous_and_aligned(
            dims in prop::sample::select(vec![[2u64, 3, 16], [3, 8, 4], [5, 6, 6], [4, 2, 24], [7, 1, 20]]),
            strides in prop::collection::vec(prop::sample::select(vec![0u64, 1, 2, 4, 6, 8, 12, 16, 48]), 3),
            first in 0u64..20,
            n in prop::sample::select(vec![1u32, 2, 4, 8]),
            of in prop::sample::select(vec![Type::F32, Type::F16]),
            is_row in any::<bool>(),
        ) {
            let elements: u64 = dims.iter().product();
            let columns = if is_row { dims[2] as u32 } else { 0 };
            let tile = ThreadTile { elements: elements as u32, columns, rows: 1, n, block: 32 };
            let (view, address, n) = (StridedView::new(&dims, &strides).unwrap(), 0x100 + first * of.bytes(), u64::from(n));
            let at = |i: u64| address + view.at(i) * of.bytes();
            let starts = (0..elements / n).map(|tile| tile * n);
            match tile.load(address, of, &view) {
                "load_vector" => for i in starts {
                    prop_assert!(at(i).is_multiple_of(n * of.bytes()) && elements.is_multiple_of(n));
                    prop_assert!((0..n).all(|k| at(i + k) == at(i) + k * of.bytes()), "{i}");
                },
                "load_broadcast" => for i in starts {
                    prop_assert!((0..n).all(|k| at(i + k) == at(i)) && elements.is_multiple_of(n), "{i}");
                },
                load => prop_assert_eq!(load, "load"),
            }
        }
    }
}
