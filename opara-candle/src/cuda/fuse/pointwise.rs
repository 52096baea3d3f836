//! What candle's element-wise kernels compute, read off their names and arguments.

use half::{bf16, f16};

use crate::cuda::driver::kernels::chain::{Code, Places, Type};
use crate::cuda::driver::Arguments;

/// A launch of an element-wise kernel of candle's, as a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub elements: u64,
    pub code: Code,
    /// Type of the operands.
    pub from: Type,
    /// Type of the arithmetic and of the result.
    pub to: Type,
    /// Factor and summand of an affine step.
    pub constants: [f32; 2],
    /// Offsets of the operands' pointers among the arguments, and where their elements are.
    pub operands: Vec<(usize, Places)>,
    /// Offset of the result's pointer.
    pub result: usize,
}

/// Kernels with one operand, without `u` and type. Others (of several types, or whose arithmetic is not that of their
/// type) are left alone.
const UNARY: &[(&str, Code)] = &[
    ("copy", Code::Copy),
    ("sqr", Code::Sqr),
    ("sqrt", Code::Sqrt),
    ("neg", Code::Neg),
    ("abs", Code::Abs),
    ("recip", Code::Recip),
    ("relu", Code::Relu),
    ("exp", Code::Exp),
    ("tanh", Code::Tanh),
    ("silu", Code::Silu),
    ("gelu", Code::Gelu),
    ("gelu_erf", Code::GeluErf),
    ("sigmoid", Code::Sigmoid),
];

/// Kernels with two, without `b` and type.
const BINARY: &[(&str, Code)] = &[
    ("add", Code::Add),
    ("sub", Code::Sub),
    ("mul", Code::Mul),
    ("div", Code::Div),
    ("maximum", Code::Max),
    ("minimum", Code::Min),
];

const TYPES: &[(&str, Type)] = &[("f32", Type::F32), ("f16", Type::F16), ("bf16", Type::Bf16)];

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}

impl Step {
    /// The step of a launch; `None` if it is none. `table` gives what lies at the address that stands at an offset among
    /// the arguments, as numbers, if that is known: dimensions, and strides of each operand.
    pub fn of(name: &str, arguments: &Arguments, table: impl FnOnce(usize) -> Option<Vec<u64>>) -> Option<Self> {
        let (code, from, to) = kernel(name)?;
        let operands = if BINARY.iter().any(|&(_, binary)| binary == code) { 2 } else { 1 };
        let constants = if code == Code::Affine { 2 } else { 0 };
        // numel, num_dims, info, operands, result, constants
        if arguments.count() != 3 + operands + 1 + constants {
            return None;
        }
        let (elements, rank) = (arguments.integer(0)?, arguments.integer(1)? as usize);
        let places = match arguments.integer(2)? {
            0 => vec![Places::default(); operands],
            _ => {
                let numbers = table(arguments.argument(2)?.0)?;
                let dims = numbers.get(..rank)?;
                let strides = |of: usize| numbers.get(rank * (1 + of)..rank * (2 + of));
                (0..operands).map(|of| Places::new(dims, strides(of)?)).collect::<Option<_>>()?
            }
        };
        let pointer =
            |argument| Some(arguments.argument(argument)?.0).filter(|_| arguments.integer(argument) != Some(0));
        let operands = places.into_iter().enumerate();
        Some(Self {
            elements,
            code,
            from,
            to,
            constants: match constants {
                0 => [0.; 2],
                _ => [number(to, arguments.argument(5)?.1)?, number(to, arguments.argument(6)?.1)?],
            },
            result: pointer(3 + operands.len())?,
            // A kernel that works in place is given null.
            operands: operands.map(|(at, places)| Some((pointer(3 + at)?, places))).collect::<Option<_>>()?,
        })
    }
}

/// What a kernel computes, and the types of its operands and of its result.
fn kernel(name: &str) -> Option<(Code, Type, Type)> {
    if let Some(types) = name.strip_prefix("cast_") {
        let (from, to) = types.split_once('_')?;
        return Some((Code::Copy, find(TYPES, from)?, find(TYPES, to)?));
    }
    let (name, of) = name.rsplit_once('_')?;
    let of = find(TYPES, of)?;
    let code = match name.strip_prefix('u') {
        _ if name == "affine" => Code::Affine,
        Some(unary) => find(UNARY, unary)?,
        None => find(BINARY, name.strip_prefix('b')?)?,
    };
    // candle computes these in f32.
    let is_widened = of == Type::Bf16 && matches!(code, Code::Silu | Code::Sigmoid);
    (!is_widened).then_some((code, of, of))
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

    fn step(name: &str, words: &[u64], table: &[u64]) -> Option<Step> {
        Step::of(name, &Arguments::from_words(words), |offset| {
            assert_eq!(offset, 16, "the table is the third argument");
            Some(table.to_vec())
        })
    }

    #[test]
    fn names_tell_what_is_computed_in_which_types() {
        assert_eq!(kernel("badd_f16"), Some((Code::Add, Type::F16, Type::F16)));
        assert_eq!(kernel("ugelu_erf_f32"), Some((Code::GeluErf, Type::F32, Type::F32)));
        assert_eq!(kernel("cast_bf16_f32"), Some((Code::Copy, Type::Bf16, Type::F32)));
        assert_eq!(kernel("affine_bf16"), Some((Code::Affine, Type::Bf16, Type::Bf16)));
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
