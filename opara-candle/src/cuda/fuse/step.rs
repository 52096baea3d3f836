//! What candle's kernels compute of elements and of rows, read off their names and arguments.

use half::{bf16, f16};

use super::dtype::Type;
use super::part::COLUMNS;
use super::program::Code;
use crate::cuda::driver::Arguments;
use crate::fuse::Places;
use crate::kernel_catalog::Operation::{self, LayerNorm, RmsNorm, RowMax, RowMin, RowSum, Softmax};
use crate::kernel_catalog::Row;
use crate::trace::Launch;

/// A launch of a kernel of candle's, as a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// Of each operand that is taken element by element.
    pub elements: u64,
    /// Of a row, if the kernel takes rows.
    pub columns: Option<u64>,
    pub code: Code,
    /// Type of the operands.
    pub from: Type,
    /// Type of the arithmetic and of the result.
    pub to: Type,
    /// Offsets of the operands' pointers among the arguments, and where their elements are.
    pub operands: Vec<(usize, Places)>,
    /// Offset of the result's pointer.
    pub result: usize,
}

/// The most threads that candle gives a row.
const THREADS: u64 = 1024;

const TYPES: &[(&str, Type)] = &[("f32", Type::F32), ("f16", Type::F16), ("bf16", Type::Bf16)];

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}

impl Step {
    /// The step of a launch; `None` if it is none. `table` gives what lies at the address that stands at an offset among
    /// the arguments, as numbers, if that is known: dimensions, and strides of each operand.
    pub fn of(
        name: &str,
        arguments: &Arguments,
        launch: &Launch,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let (operation, of, to) = known(name)?;
        match operation {
            RowSum | RowMax | RowMin => Self::fold(operation, of, arguments, launch, table),
            Softmax | LayerNorm | RmsNorm => Self::rows(operation, of, arguments, launch),
            _ => Self::elements(element_wise(operation, to)?, of, to, arguments, table),
        }
    }

    fn elements(
        code: Code,
        from: Type,
        to: Type,
        arguments: &Arguments,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let operands = if let Code::ElementWise(_, operands) = code { operands } else { 1 };
        let constants = if let Code::Affine(..) = code { 2 } else { 0 };
        // numel, num_dims, info, operands, result, constants
        if arguments.count() != 3 + operands + 1 + constants {
            return None;
        }
        let places = places(arguments, 1, operands, table)?.into_iter().enumerate();
        Some(Self {
            elements: arguments.integer(0)?,
            columns: None,
            code: match code {
                Code::Affine(..) => {
                    Code::Affine(number(to, arguments.argument(5)?.1)?, number(to, arguments.argument(6)?.1)?)
                }
                code => code,
            },
            from,
            to,
            // A kernel that works in place is given null.
            operands: places.map(|(at, places)| Some((pointer(arguments, 3 + at)?, places))).collect::<Option<_>>()?,
            result: pointer(arguments, 3 + operands)?,
        })
    }

    /// Kernels that make one number of a row: numel, columns, num_dims, info, operand, result.
    fn fold(
        operation: Operation,
        of: Type,
        arguments: &Arguments,
        launch: &Launch,
        table: impl FnOnce(usize) -> Option<Vec<u64>>,
    ) -> Option<Self> {
        let (elements, columns) = (arguments.integer(0)?, arguments.integer(1)?);
        let threads = columns.min(THREADS).checked_next_power_of_two()?;
        if arguments.count() != 6 || !launched(launch, elements, columns, [threads, 1, 1]) {
            return None;
        }
        let places = *places(arguments, 2, 1, table)?.first()?;
        let code = match operation {
            RowMax => Code::RowMax,
            RowMin => Code::RowMin,
            // A thread adds up what it takes of 16 bytes at once, where they lie so.
            _ => match of {
                Type::F32 | Type::Bf16 if places.are_in_a_row() => {
                    let is_aligned = arguments.integer(4)?.is_multiple_of(16);
                    is_aligned.then_some(Code::RowSum(if of == Type::F32 { 4 } else { 8 }))?
                }
                _ => Code::RowSum(1),
            },
        };
        Some(Self {
            elements,
            columns: Some(columns),
            code,
            from: of,
            to: of,
            operands: vec![(pointer(arguments, 4)?, places)],
            result: pointer(arguments, 5)?,
        })
    }

    /// Kernels of rows: operand, result, what has a number for each column, columns; of a norm, too, the threads of a row
    /// and what is added to what it divides by.
    fn rows(operation: Operation, of: Type, arguments: &Arguments, launch: &Launch) -> Option<Self> {
        let operands = match operation {
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
        if !is_known || !launched(launch, elements, columns, block) {
            return None;
        }
        let epsilon = || number(Type::F32, arguments.argument(3 + operands)?.1);
        let code = match operation {
            LayerNorm => Code::LayerNorm(epsilon()?),
            RmsNorm => Code::RmsNorm(epsilon()?),
            _ => Code::Softmax,
        };
        let of_columns = Places::new(&[elements / columns, columns], &[0, 1])?;
        let others = (2..1 + operands).map(|at| Some((pointer(arguments, at)?, of_columns)));
        let first = (pointer(arguments, 0)?, Places::default());
        Some(Self {
            elements,
            columns: Some(columns),
            code,
            from: of,
            to: of,
            operands: std::iter::once(Some(first)).chain(others).collect::<Option<_>>()?,
            result: pointer(arguments, 1)?,
        })
    }
}

/// Offset of a pointer that is not null.
fn pointer(arguments: &Arguments, index: usize) -> Option<usize> {
    Some(arguments.argument(index)?.0).filter(|_| arguments.integer(index) != Some(0))
}

/// Where the elements of operands are: `num_dims` and `info` stand at an index among the arguments.
fn places(
    arguments: &Arguments,
    at: usize,
    operands: usize,
    table: impl FnOnce(usize) -> Option<Vec<u64>>,
) -> Option<Vec<Places>> {
    let rank = arguments.integer(at)? as usize;
    if arguments.integer(at + 1)? == 0 {
        return Some(vec![Places::default(); operands]);
    }
    let numbers = table(arguments.argument(at + 1)?.0)?;
    let dims = numbers.get(..rank)?;
    let strides = |of: usize| numbers.get(rank * (1 + of)..rank * (2 + of));
    (0..operands).map(|of| Places::new(dims, strides(of)?)).collect()
}

/// Whether a launch has a block of these threads for each row, and rows are such as a chain takes.
fn launched(launch: &Launch, elements: u64, columns: u64, block: [u64; 3]) -> bool {
    (2..=COLUMNS).contains(&columns)
        && u64::from(launch.grid[0]).checked_mul(columns) == Some(elements)
        && launch.grid[1..] == [1, 1]
        && launch.block.map(u64::from) == block
}

/// What a kernel computes, and the types of its operands and of its result.
fn known(name: &str) -> Option<(Operation, Type, Type)> {
    let row = Row::of(name)?;
    let (operation, types) = (row.operation?, name.strip_prefix(row.prefix)?);
    let (from, to) = if operation == Operation::Cast { types.split_once('_')? } else { (types, types) };
    Some((operation, find(TYPES, from)?, find(TYPES, to)?))
}

/// What is computed of elements one by one, in arithmetic of this type. Constants are not known yet.
fn element_wise(operation: Operation, of: Type) -> Option<Code> {
    Some(match operation {
        // candle computes these in f32.
        Operation::Unary("silu" | "sigmoid") if of == Type::Bf16 => return None,
        Operation::Cast | Operation::Copy => Code::Cast,
        Operation::Unary(function) => Code::ElementWise(function, 1),
        Operation::Binary(function) => Code::ElementWise(function, 2),
        Operation::Affine => Code::Affine(1., 0.),
        RowSum | RowMax | RowMin | Softmax | LayerNorm | RmsNorm => return None,
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

    fn step(name: &str, words: &[u64], table: &[u64]) -> Option<Step> {
        Step::of(name, &Arguments::from_words(words), &launch(1, [1024, 1, 1]), |offset| {
            assert_eq!(offset, 16, "the table is the third argument");
            Some(table.to_vec())
        })
    }

    fn of_rows(name: &str, words: &[u64], launch: &Launch) -> Option<Step> {
        Step::of(name, &Arguments::from_words(words), launch, |offset| {
            assert_eq!(offset, 24, "the table is the fourth argument");
            Some(vec![5, 100, 100, 1])
        })
    }

    #[test]
    fn names_tell_what_is_computed_in_which_types() {
        let kernel = |name| known(name).and_then(|(of, from, to)| Some((element_wise(of, to)?, from, to)));
        assert_eq!(kernel("badd_f16"), Some((Code::ElementWise("add", 2), Type::F16, Type::F16)));
        assert_eq!(kernel("ugelu_erf_f32"), Some((Code::ElementWise("gelu_erf", 1), Type::F32, Type::F32)));
        assert_eq!(kernel("cast_bf16_f32"), Some((Code::Cast, Type::Bf16, Type::F32)));
        assert_eq!(kernel("ucopy_f16"), Some((Code::Cast, Type::F16, Type::F16)));
        assert_eq!(kernel("affine_bf16"), Some((Code::Affine(1., 0.), Type::Bf16, Type::Bf16)));
        for other in
            ["badd_f64", "cast_u32_f32", "where_u8_f32", "upowf_f32", "usilu_bf16", "softmax_f32", "gt_f32", "u"]
        {
            assert_eq!(kernel(other), None, "{other}");
        }
    }

    #[test]
    fn operands_are_found_among_the_arguments() {
        let row = Places::default();
        let add = step("badd_f32", &[6, 2, 0, 0xa000, 0xb000, 0xc000], &[]).unwrap();
        assert_eq!((add.elements, add.operands, add.result), (6, vec![(24, row), (32, row)], 40));
        let add = step("badd_f32", &[6, 2, 0xd000, 0xa000, 0xb000, 0xc000], &[2, 3, 3, 1, 0, 1]).unwrap();
        assert_eq!(add.operands, [(24, row), (32, Places::new(&[2, 3], &[0, 1]).unwrap())]);
        let copy = step("ucopy_f16", &[6, 2, 0xd000, 0xa000, 0xb000], &[2, 3, 1, 2]).unwrap();
        assert_eq!((copy.operands, copy.result), (vec![(24, Places::new(&[2, 3], &[1, 2]).unwrap())], 32));
    }

    #[test]
    fn rows_are_found_among_the_arguments() {
        let row = Places::default();
        let sum = [500, 100, 2, 0xd000, 0xa000, 0xb000];
        let step = of_rows("fast_sum_f16", &sum, &launch(5, [128, 1, 1])).unwrap();
        assert_eq!((step.code, step.elements, step.columns), (Code::RowSum(1), 500, Some(100)));
        assert_eq!((step.operands, step.result), (vec![(32, row)], 40));
        let code_of = |name, address| {
            let words = [500, 100, 2, 0xd000, address, 0xb000];
            Some(of_rows(name, &words, &launch(5, [128, 1, 1]))?.code)
        };
        let neighbours = ["fast_sum_f16", "fast_sum_bf16", "fast_sum_f32"].map(|name| code_of(name, 0xa000));
        assert_eq!(neighbours, [1, 8, 4].map(|neighbours| Some(Code::RowSum(neighbours))));
        let unaligned = ["fast_sum_f32", "fast_sum_f16", "fast_max_f32"].map(|name| code_of(name, 0xa008));
        assert_eq!(unaligned, [None, Some(Code::RowSum(1)), Some(Code::RowMax)]);
        for other in [launch(5, [256, 1, 1]), launch(4, [128, 1, 1])] {
            assert_eq!(of_rows("fast_sum_f32", &sum, &other), None, "other threads");
        }
        let step = of_rows("softmax_f32", &[0xa000, 0xb000, 100], &launch(5, [1, 32, 1])).unwrap();
        assert_eq!((step.elements, step.columns, step.operands, step.result), (500, Some(100), vec![(0, row)], 8));
        assert_eq!(of_rows("softmax_f32", &[0xa000, 0xb000, 5000], &launch(5, [1, 32, 1])), None, "too long");
    }

    #[test]
    fn a_norm_has_a_number_for_each_column() {
        let norm = |threads: u64, block| {
            let epsilon = u64::from(1e-5f32.to_bits());
            let words = [0xa000, 0xb000, 0xc000, 0xd000, 100, threads, epsilon];
            let mut arguments = Arguments::from_words(&words);
            arguments.cut(6, 4);
            Step::of("layernorm_f16", &arguments, &launch(5, [block, 1, 1]), |_| None)
        };
        let step = norm(32, 32).unwrap();
        let (row, of_columns) = (Places::default(), Places::new(&[5, 100], &[0, 1]).unwrap());
        assert_eq!((step.operands, step.result), (vec![(0, row), (16, of_columns), (24, of_columns)], 8));
        assert_eq!((step.columns, step.code), (Some(100), Code::LayerNorm(1e-5)));
        assert_eq!(norm(1024, 32).or(norm(32, 64)).or(norm(1024, 1024)), None, "other threads");
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
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
