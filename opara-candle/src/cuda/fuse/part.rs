//! What a thread makes of a chain's results, and how it loads what that takes.

use cudarc::driver::LaunchConfig;

use super::dtype::Type;
use crate::fuse::Places;

/// The most columns of a row.
pub(super) const COLUMNS: u64 = 4096;
/// The most threads of a block.
const THREADS: u32 = 1024;
/// Threads of a block where nothing is made of rows.
const BLOCK: u32 = 128;
/// Elements from which on a thread makes four, and a launch gains by that even alone. Below, more threads are faster (H200).
pub(super) const MANY_ELEMENTS: u32 = 1 << 16;
/// Elements from which on it is faster with as many as 16 bytes hold (H200).
const VERY_MANY_ELEMENTS: u32 = 1 << 20;
/// Rows from which on a thread makes four elements.
const MANY_ROWS: u32 = 1024;
/// Threads of a warp.
const WARP: u32 = 32;
/// Rows of a block whose rows are a warp's each: a multiprocessor has room for more warps than blocks.
const ROWS: u32 = 4;

/// What a thread makes: `Part` of `part.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Of all rows.
    pub elements: u32,
    /// Of a row; 0 where nothing is made of rows.
    pub columns: u32,
    /// Rows that a block makes.
    pub rows: u32,
    /// Elements of a thread: a power of two, like what is loaded at once.
    pub n: u32,
    /// Threads of a block, or of each of its rows.
    pub block: u32,
}

impl Part {
    /// Of so many elements, in rows of so many columns if there are rows. `None` if 31 bits do not count the elements.
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

    /// The same with threads that make as many elements as 16 bytes hold, of types of which `widest` has the most bytes,
    /// where that is faster if they are loaded at once.
    pub fn wider(self, widest: Type) -> Option<Self> {
        let n = 16 / widest.bytes() as u32;
        (self.columns == 0 && self.elements >= VERY_MANY_ELEMENTS && n > self.n).then_some(Self { n, ..self })
    }

    /// Whether the elements of a thread are neighbours.
    pub fn is_together(self) -> bool {
        (if self.columns > 0 { self.columns } else { self.elements }).is_multiple_of(self.n)
    }

    /// Whether neighbours lie together in memory, where they can be taken at once.
    pub fn is_aligned(self, address: u64, of: Type) -> bool {
        self.is_together() && address.is_multiple_of(of.bytes() * u64::from(self.n))
    }

    /// How an operand is loaded.
    pub fn load(self, address: u64, of: Type, places: &Places) -> &'static str {
        let n = u64::from(self.n);
        let is_whole = |(dim, stride): (u64, u64), expected| dim.is_multiple_of(n) && stride == expected;
        let are_outer_aligned = || places.all().rev().skip(1).all(|(_, stride)| stride.is_multiple_of(n));
        match places.all().next_back() {
            None if self.is_aligned(address, of) => "load_together",
            Some(inner) if self.is_together() && is_whole(inner, 0) => "load_once",
            Some(inner) if self.is_aligned(address, of) && is_whole(inner, 1) && are_outer_aligned() => "load_together",
            _ => "load",
        }
    }

    /// The launch of a kernel whose threads make such parts.
    pub fn config(self) -> LaunchConfig {
        let Self { elements, columns, rows, n, block } = self;
        let (blocks, shared_mem_bytes) = match columns {
            0 => (elements.div_ceil(n * block), 0),
            // Of each column a number, and of what is missing to a power of two.
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
    fn a_thread_makes_several_elements_where_there_are_many() {
        let launch = |elements, columns| {
            let part = Part::of(elements, columns).unwrap();
            let config = part.config();
            (part.n, config.grid_dim.0, (config.block_dim.0, config.block_dim.1), config.shared_mem_bytes)
        };
        assert_eq!(launch(1000, None), (1, 8, (128, 1), 0));
        assert_eq!(launch(1 << 16, None), (4, 128, (128, 1), 0));
        assert_eq!(launch(1536 * 128, Some(128)), (4, 384, (32, 4), 2048));
        assert_eq!(launch(1538 * 100, Some(100)), (4, 1538, (32, 1), 512), "rows that four do not divide");
        assert_eq!(launch(10 * 1500, Some(1500)), (2, 10, (768, 1), 8192));
        assert_eq!(launch(10 * 3072, Some(3072)), (4, 10, (768, 1), 16384));
        assert_eq!(launch(COLUMNS, Some(COLUMNS)), (4, 1, (1024, 1), 16384));
        assert!(Part::of(1 << 31, None).is_none());
        let wider = |elements, columns, widest| Part::of(elements, columns).unwrap().wider(widest).map(|part| part.n);
        assert_eq!(wider(1 << 20, None, Type::F16), Some(8));
        assert_eq!(wider(1 << 20, None, Type::F32), None, "16 bytes hold four");
        assert_eq!(wider((1 << 20) - 1, None, Type::F16), None, "too few");
        assert_eq!(wider(1 << 20, Some(128), Type::F16), None, "rows");
    }

    #[test]
    fn neighbours_are_loaded_at_once_where_they_lie_together() {
        let load = |part: Part, address, of, dims: &[u64], strides: &[u64]| {
            part.load(address, of, &Places::new(dims, strides).unwrap())
        };
        let four = Part::of(1 << 20, None).unwrap();
        assert_eq!(load(four, 0x100, Type::F32, &[], &[]), "load_together");
        assert_eq!(load(four, 0x108, Type::F16, &[], &[]), "load_together");
        assert_eq!(load(four, 0x108, Type::F32, &[], &[]), "load", "not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[0, 1]), "load_together");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1028, 1]), "load_together");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1030, 1]), "load", "rows are not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1, 1 << 10]), "load", "transposed");
        assert_eq!(load(four, 0x102, Type::F16, &[1 << 10, 1 << 10], &[1, 0]), "load_once");
        assert_eq!(load(four, 0x100, Type::F16, &[2, 1 << 18, 2], &[2, 4, 1]), "load", "two are together");
        let eight = four.wider(Type::F16).unwrap();
        assert_eq!(load(eight, 0x110, Type::F16, &[], &[]), "load_together");
        assert_eq!(load(eight, 0x108, Type::F16, &[], &[]), "load", "aligned for four");
        let odd = Part::of((1 << 20) + 1, None).unwrap();
        assert_eq!(load(odd, 0x100, Type::F32, &[], &[]), "load");
        assert!(!odd.is_together() && !Part::of(5000 * 77, Some(77)).unwrap().is_together());
    }

    proptest! {
        #[test]
        fn what_is_loaded_at_once_lies_together_and_aligned(
            dims in prop::sample::select(vec![[2u64, 3, 16], [3, 8, 4], [5, 6, 6], [4, 2, 24], [7, 1, 20]]),
            strides in prop::collection::vec(prop::sample::select(vec![0u64, 1, 2, 4, 6, 8, 12, 16, 48]), 3),
            first in 0u64..20,
            n in prop::sample::select(vec![1u32, 2, 4, 8]),
            of in prop::sample::select(vec![Type::F32, Type::F16]),
            is_row in any::<bool>(),
        ) {
            let elements: u64 = dims.iter().product();
            let columns = if is_row { dims[2] as u32 } else { 0 };
            let part = Part { elements: elements as u32, columns, rows: 1, n, block: 32 };
            let (places, address, n) = (Places::new(&dims, &strides).unwrap(), 0x100 + first * of.bytes(), u64::from(n));
            let at = |i: u64| address + places.at(i) * of.bytes();
            let shares = (0..elements / n).map(|share| share * n);
            match part.load(address, of, &places) {
                "load_together" => for i in shares {
                    prop_assert!(at(i).is_multiple_of(n * of.bytes()) && elements.is_multiple_of(n));
                    prop_assert!((0..n).all(|k| at(i + k) == at(i) + k * of.bytes()), "{i}");
                },
                "load_once" => for i in shares {
                    prop_assert!((0..n).all(|k| at(i + k) == at(i)) && elements.is_multiple_of(n), "{i}");
                },
                load => prop_assert_eq!(load, "load"),
            }
        }
    }
}
