//! Identifies a candle kernel by its name and arguments: element-wise kernels, row reductions, softmax and norms.

use half::{bf16, f16};
use opara_plan::fusion::StridedView;

use super::dtype::Type;
use super::fused_kernel::Operation;
use super::thread_tile::COLUMNS;
use crate::cuda::driver::Arguments;
use crate::trace::Launch;
use opara_plan::kernel_catalog::KernelEntry;
use opara_plan::kernel_catalog::Means::{self, LayerNorm, RmsNorm, RowMax, RowMin, RowSum, Softmax};

/// The computation of one launch of a candle kernel.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cuda) struct CandleKernel {
    /// The number of elements that it computes.
    pub elements: u64,
    /// The length of a row, if the kernel works on rows.
    pub columns: Option<u64>,
    pub operation: Operation,
    /// Type of the operands.
    pub from: Type,
    /// Type of the arithmetic and of the result.
    pub to: Type,
    /// For each operand, the offset of its pointer in the arguments, and its strided view.
    pub operands: Vec<(usize, StridedView)>,
    /// Offset of the result's pointer.
    pub result: usize,
}

/// Maximum threads per row in candle's kernels.
const THREADS: u64 = 1024;

const TYPES: &[(&str, Type)] = &[("f32", Type::F32), ("f16", Type::F16), ("bf16", Type::Bf16)];

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}

impl CandleKernel {
    /// Identifies a launch; `None` if its kernel cannot be fused. `table` gives the uploaded dimensions and strides
    /// that the argument at an offset points to, if they are known.
    pub fn of(
        name: &str,
        arguments: &Arguments,
        launch: &Launch,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let (means, of, to) = known(name)?;
        match means {
            RowSum | RowMax | RowMin => Self::reduction(means, of, arguments, launch, table),
            Softmax | LayerNorm | RmsNorm => Self::rows(means, of, arguments, launch),
            _ => Self::element_wise(element_wise(means)?, [of, to], arguments, table),
        }
    }

    fn element_wise(
        operation: Operation,
        [from, to]: [Type; 2],
        arguments: &Arguments,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let operands = if let Operation::ElementWise(_, operands) = operation { operands } else { 1 };
        let constants = if let Operation::Affine(..) = operation { 2 } else { 0 };
        // numel, num_dims, info, operands, result, constants
        if arguments.count() != 3 + operands + 1 + constants {
            return None;
        }
        let views = views(arguments, 1, operands, table)?.into_iter().enumerate();
        Some(Self {
            elements: arguments.integer(0)?,
            columns: None,
            operation: match operation {
                Operation::Affine(..) => {
                    Operation::Affine(number(to, arguments.argument(5)?.1)?, number(to, arguments.argument(6)?.1)?)
                }
                operation => operation,
            },
            from,
            to,
            // A kernel that works in place gets a null input.
            operands: views.map(|(at, view)| Some((pointer(arguments, 3 + at)?, view))).collect::<Option<_>>()?,
            result: pointer(arguments, 3 + operands)?,
        })
    }

    /// Row reductions. Arguments: numel, columns, num_dims, info, operand, result.
    fn reduction(
        means: Means,
        of: Type,
        arguments: &Arguments,
        launch: &Launch,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let (elements, columns) = (arguments.integer(0)?, arguments.integer(1)?);
        let threads = columns.min(THREADS).checked_next_power_of_two()?;
        if arguments.count() != 6 || !has_block_per_row(launch, elements, columns, [threads, 1, 1]) {
            return None;
        }
        let view = *views(arguments, 2, 1, table)?.first()?;
        let operation = match means {
            RowMax => Operation::RowMax,
            RowMin => Operation::RowMin,
            // For an aligned operand, candle's kernel uses 16-byte vector loads, and each thread first sums its vector.
            _ => match of {
                Type::F32 | Type::Bf16 if view.is_contiguous() => {
                    let is_aligned = arguments.integer(4)?.is_multiple_of(16);
                    is_aligned.then_some(Operation::RowSum(if of == Type::F32 { 4 } else { 8 }))?
                }
                _ => Operation::RowSum(1),
            },
        };
        Some(Self {
            elements,
            columns: Some(columns),
            operation,
            from: of,
            to: of,
            operands: vec![(pointer(arguments, 4)?, view)],
            result: pointer(arguments, 5)?,
        })
    }

    /// Softmax and norms. Arguments: operand, result, weight and bias (one element per column), columns; a norm adds
    /// the threads per row and epsilon.
    fn rows(means: Means, of: Type, arguments: &Arguments, launch: &Launch) -> Option<Self> {
        let operands = match means {
            LayerNorm => 3,
            RmsNorm => 2,
            _ => 1,
        };
        let columns = arguments.integer(1 + operands)?;
        let elements = columns.checked_mul(launch.grid[0].into())?;
        let is_norm = operands > 1;
        let threads = if columns < THREADS { 32 } else { THREADS };
        let block = if is_norm { [threads, 1, 1] } else { [1, 32, 1] };
        let is_known = arguments.count() == if is_norm { 4 + operands } else { 2 + operands }
            && (!is_norm || arguments.integer(2 + operands) == Some(threads));
        if !is_known || !has_block_per_row(launch, elements, columns, block) {
            return None;
        }
        let epsilon = || number(Type::F32, arguments.argument(3 + operands)?.1);
        let operation = match means {
            LayerNorm => Operation::LayerNorm(epsilon()?),
            RmsNorm => Operation::RmsNorm(epsilon()?),
            _ => Operation::Softmax,
        };
        let of_columns = StridedView::new(&[elements / columns, columns], &[0, 1])?;
        let others = (2..1 + operands).map(|at| Some((pointer(arguments, at)?, of_columns)));
        let first = (pointer(arguments, 0)?, StridedView::default());
        Some(Self {
            elements,
            columns: Some(columns),
            operation,
            from: of,
            to: of,
            operands: std::iter::once(Some(first)).chain(others).collect::<Option<_>>()?,
            result: pointer(arguments, 1)?,
        })
    }
}

/// Offset of a pointer argument that is not null.
fn pointer(arguments: &Arguments, index: usize) -> Option<usize> {
    Some(arguments.argument(index)?.0).filter(|_| arguments.integer(index) != Some(0))
}

/// The strided views of the operands; the arguments `num_dims` and `info` begin at index `at`.
fn views(
    arguments: &Arguments,
    at: usize,
    operands: usize,
    table: impl FnOnce(usize) -> Option<Vec<u64>>,
) -> Option<Vec<StridedView>> {
    let rank = arguments.integer(at)? as usize;
    if arguments.integer(at + 1)? == 0 {
        return Some(vec![StridedView::default(); operands]);
    }
    let numbers = table(arguments.argument(at + 1)?.0)?;
    let dims = numbers.get(..rank)?;
    let strides = |of: usize| numbers.get(rank * (1 + of)..rank * (2 + of));
    (0..operands).map(|of| StridedView::new(dims, strides(of)?)).collect()
}

/// Does a launch have one such block per row, and rows short enough for a fused kernel?
fn has_block_per_row(launch: &Launch, elements: u64, columns: u64, block: [u64; 3]) -> bool {
    (2..=COLUMNS).contains(&columns)
        && u64::from(launch.grid[0]).checked_mul(columns) == Some(elements)
        && launch.grid[1..] == [1, 1]
        && launch.block.map(u64::from) == block
}

/// The fused operation that replaces a kernel, with the types of the kernel's operands and result.
fn known(name: &str) -> Option<(Means, Type, Type)> {
    let row = KernelEntry::of(name).filter(|row| row.is_fused)?;
    let types = name.strip_prefix(row.prefix)?;
    let (from, to) = if row.means == Means::Cast { types.split_once('_')? } else { (types, types) };
    Some((row.means, find(TYPES, from)?, find(TYPES, to)?))
}

/// The element-wise operation. Constants are filled in later.
fn element_wise(means: Means) -> Option<Operation> {
    Some(match means {
        Means::Cast | Means::Copy => Operation::Cast,
        Means::Unary(function) => Operation::ElementWise(function, 1),
        Means::Binary(function) => Operation::ElementWise(function, 2),
        Means::Affine => Operation::Affine(1., 0.),
        _ => return None,
    })
}

/// A constant argument.
fn number(of: Type, bytes: &[u8]) -> Option<f32> {
    Some(match of {
        Type::F32 => f32::from_ne_bytes(bytes.try_into().ok()?),
        Type::F16 => f16::from_ne_bytes(bytes.try_into().ok()?).to_f32(),
        Type::Bf16 => bf16::from_ne_bytes(bytes.try_into().ok()?).to_f32(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(grid: u32, block: [u32; 3]) -> Launch {
        Launch { grid: [grid, 1, 1], block, ..Launch::default() }
    }

    fn step(name: &str, words: &[u64], table: &[u64]) -> Option<CandleKernel> {
        CandleKernel::of(name, &Arguments::from_words(words), &launch(1, [1024, 1, 1]), |offset| {
            assert_eq!(offset, 16, "the table is the third argument");
            Some(table.to_vec())
        })
    }

    fn of_rows(name: &str, words: &[u64], launch: &Launch) -> Option<CandleKernel> {
        CandleKernel::of(name, &Arguments::from_words(words), launch, |offset| {
            assert_eq!(offset, 24, "the table is the fourth argument");
            Some(vec![5, 100, 100, 1])
        })
    }

    #[test]
    fn the_name_gives_operation_and_types() {
        let kernel = |name| known(name).and_then(|(of, from, to)| Some((element_wise(of)?, from, to)));
        assert_eq!(kernel("badd_f16"), Some((Operation::ElementWise("add", 2), Type::F16, Type::F16)));
        assert_eq!(kernel("ugelu_erf_f32"), Some((Operation::ElementWise("gelu_erf", 1), Type::F32, Type::F32)));
        assert_eq!(kernel("cast_bf16_f32"), Some((Operation::Cast, Type::Bf16, Type::F32)));
        assert_eq!(kernel("ucopy_f16"), Some((Operation::Cast, Type::F16, Type::F16)));
        assert_eq!(kernel("affine_bf16"), Some((Operation::Affine(1., 0.), Type::Bf16, Type::Bf16)));
        for other in ["badd_f64", "cast_u32_f32", "where_u8_f32", "upowf_f32", "softmax_f32", "gt_f32", "u"] {
            assert_eq!(kernel(other), None, "{other}");
        }
    }

    #[test]
    fn operands_of_element_wise_kernels_are_found_in_the_arguments() {
        let row = StridedView::default();
        let add = step("badd_f32", &[6, 2, 0, 0xa000, 0xb000, 0xc000], &[]).unwrap();
        assert_eq!((add.elements, add.operands, add.result), (6, vec![(24, row), (32, row)], 40));
        let add = step("badd_f32", &[6, 2, 0xd000, 0xa000, 0xb000, 0xc000], &[2, 3, 3, 1, 0, 1]).unwrap();
        assert_eq!(add.operands, [(24, row), (32, StridedView::new(&[2, 3], &[0, 1]).unwrap())]);
        let copy = step("ucopy_f16", &[6, 2, 0xd000, 0xa000, 0xb000], &[2, 3, 1, 2]).unwrap();
        assert_eq!((copy.operands, copy.result), (vec![(24, StridedView::new(&[2, 3], &[1, 2]).unwrap())], 32));
    }

    #[test]
    fn rows_of_reductions_are_found_in_the_arguments() {
        let row = StridedView::default();
        let sum = [500, 100, 2, 0xd000, 0xa000, 0xb000];
        let step = of_rows("fast_sum_f16", &sum, &launch(5, [128, 1, 1])).unwrap();
        assert_eq!((step.operation, step.elements, step.columns), (Operation::RowSum(1), 500, Some(100)));
        assert_eq!((step.operands, step.result), (vec![(32, row)], 40));
        let code_of = |name, address| {
            let words = [500, 100, 2, 0xd000, address, 0xb000];
            Some(of_rows(name, &words, &launch(5, [128, 1, 1]))?.operation)
        };
        let neighbours = ["fast_sum_f16", "fast_sum_bf16", "fast_sum_f32"].map(|name| code_of(name, 0xa000));
        assert_eq!(neighbours, [1, 8, 4].map(|neighbours| Some(Operation::RowSum(neighbours))));
        let unaligned = ["fast_sum_f32", "fast_sum_f16", "fast_max_f32"].map(|name| code_of(name, 0xa008));
        assert_eq!(unaligned, [None, Some(Operation::RowSum(1)), Some(Operation::RowMax)]);
        for other in [launch(5, [256, 1, 1]), launch(4, [128, 1, 1])] {
            assert_eq!(of_rows("fast_sum_f32", &sum, &other), None, "other block sizes");
        }
        let step = of_rows("softmax_f32", &[0xa000, 0xb000, 100], &launch(5, [1, 32, 1])).unwrap();
        assert_eq!((step.elements, step.columns, step.operands, step.result), (500, Some(100), vec![(0, row)], 8));
        assert_eq!(of_rows("softmax_f32", &[0xa000, 0xb000, 5000], &launch(5, [1, 32, 1])), None, "too long");
    }

    #[test]
    fn a_norm_has_one_weight_per_column() {
        let norm = |threads: u64, block| {
            let epsilon = u64::from(1e-5f32.to_bits());
            let words = [0xa000, 0xb000, 0xc000, 0xd000, 100, threads, epsilon];
            let mut arguments = Arguments::from_words(&words);
            arguments.cut(6, 4);
            CandleKernel::of("layernorm_f16", &arguments, &launch(5, [block, 1, 1]), |_| None)
        };
        let step = norm(32, 32).unwrap();
        let (row, of_columns) = (StridedView::default(), StridedView::new(&[5, 100], &[0, 1]).unwrap());
        assert_eq!((step.operands, step.result), (vec![(0, row), (16, of_columns), (24, of_columns)], 8));
        assert_eq!((step.columns, step.operation), (Some(100), Operation::LayerNorm(1e-5)));
        assert_eq!(norm(1024, 32).or(norm(32, 64)).or(norm(1024, 1024)), None, "other block sizes");
    }

    #[test]
    fn unknown_signatures_are_not_fused() {
        assert_eq!(step("badd_f32", &[6, 2, 0, 0xa000, 0xb000], &[]), None, "another signature");
        assert_eq!(step("badd_f32", &[6, 2, 0xd000, 0xa000, 0xb000, 0xc000], &[2, 3, 3, 1]), None, "half a table");
        assert_eq!(step("uneg_f32", &[6, 2, 0, 0, 0xb000], &[]), None, "in place");
        assert_eq!(
            step("uneg_f32", &[6, 5, 0xd000, 1, 2], &[2, 2, 2, 2, 2, 1, 2, 4, 8, 16]),
            None,
            "too many dimensions"
        );
    }
}
