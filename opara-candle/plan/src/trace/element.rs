//! The types of elements.

use serde::{Deserialize, Serialize};

/// The type of elements. The order is the encoding in trace files: add types at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// Bytes without a type.
    Byte,
    /// 16 bits with an 11-bit significand.
    F16,
    /// 16 bits with an 8-bit significand.
    Bf16,
    /// 32 bits.
    F32,
    /// Unsigned integers of 8 bits: conditions, which hold where they are not 0.
    U8,
    /// Unsigned integers of 32 bits.
    U32,
    /// Signed integers of 64 bits.
    I64,
    /// 64 bits.
    F64,
    /// 8 bits with a 4-bit significand, and no infinity.
    F8,
    /// Signed integers of 16 bits.
    I16,
    /// Signed integers of 32 bits.
    I32,
}

impl Element {
    /// The type that kernels of candle's have this name for.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "f8_e4m3" | "fp8_e4m3" => Self::F8,
            "u8" => Self::U8,
            "u32" => Self::U32,
            "i16" => Self::I16,
            "i32" => Self::I32,
            "i64" => Self::I64,
            _ => return None,
        })
    }

    /// Two types by their names, as in `u32_f16`.
    pub fn two_of_names(names: &str) -> Option<(Self, Self)> {
        // A name may have a `_` inside.
        let mut splits = names.match_indices('_').map(|(at, _)| (&names[..at], &names[at + 1..]));
        splits.find_map(|(one, other)| Some((Self::of_name(one)?, Self::of_name(other)?)))
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Byte | Self::U8 | Self::F8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point number of a type that operators compute with.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32)
    }

    /// Whether it is an integer.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::U8 | Self::U32 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Whether rules may be about it. A run of launches ends before other types: a part of a pass is no less accurate in no other type.
    pub fn is_of_rules(self) -> bool {
        !matches!(self, Self::F64 | Self::F8 | Self::I16 | Self::I32)
    }

    /// The floating-point number that these bits are; `None` for other types.
    pub fn number(self, bits: u64) -> Option<f64> {
        // Sign, exponent and fraction of a number, each with its bits.
        let small = |exponent_bits: u32, fraction_bits: u32| {
            let bias = (1 << (exponent_bits - 1)) - 1;
            let exponent = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
            let fraction = (bits & ((1 << fraction_bits) - 1)) as f64 / f64::from(1 << fraction_bits);
            let size = match exponent {
                0 => fraction * 2f64.powi(1 - bias),
                _ => (1. + fraction) * 2f64.powi(exponent - bias),
            };
            if bits >> (exponent_bits + fraction_bits) & 1 == 1 {
                -size
            } else {
                size
            }
        };
        match self {
            Self::F16 => Some(match (bits & 0x7c00, bits & 0x3ff) {
                (0x7c00, 0) if bits & 0x8000 == 0 => f64::INFINITY,
                (0x7c00, 0) => f64::NEG_INFINITY,
                (0x7c00, _) => f64::NAN,
                _ => small(5, 10),
            }),
            Self::F8 if bits & 0x7f == 0x7f => Some(f64::NAN),
            Self::F8 => Some(small(4, 3)),
            Self::Bf16 => Some(f32::from_bits((bits as u32) << 16).into()),
            Self::F32 => Some(f32::from_bits(bits as u32).into()),
            Self::F64 => Some(f64::from_bits(bits)),
            Self::Byte | Self::U8 | Self::U32 | Self::I16 | Self::I32 | Self::I64 => None,
        }
    }

    /// The integer that these bits are; `None` for other types.
    pub fn integer(self, bits: u64) -> Option<i64> {
        match self {
            Self::U8 => Some((bits as u8).into()),
            Self::U32 => Some((bits as u32).into()),
            Self::I16 => Some((bits as i16).into()),
            Self::I32 => Some((bits as i32).into()),
            Self::I64 => Some(bits as i64),
            Self::Byte | Self::F8 | Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => None,
        }
    }

    /// The bits of the smallest finite floating-point number of a type that operators compute with; `None` for other types.
    pub fn lowest(self) -> Option<u64> {
        match self {
            Self::F16 => Some(0xfbff),
            Self::Bf16 => Some(0xff7f),
            Self::F32 => Some(f32::MIN.to_bits().into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_numbers() {
        let halves = [(0, 0.), (1, 2f64.powi(-24)), (0x3c00, 1.), (0xc100, -2.5), (0x7bff, 65504.)];
        for (bits, number) in halves.into_iter().chain([(0xfbff, -65504.), (0xfc00, f64::NEG_INFINITY)]) {
            assert_eq!(Element::F16.number(bits), Some(number));
        }
        assert!(Element::F16.number(0x7e00).is_some_and(f64::is_nan));
        for (bits, number) in [(0, 0.), (1, 2f64.powi(-9)), (0x38, 1.), (0xc2, -2.5), (0x7e, 448.), (0xfe, -448.)] {
            assert_eq!(Element::F8.number(bits), Some(number));
        }
        assert!(Element::F8.number(0xff).is_some_and(f64::is_nan));
        assert_eq!(Element::Bf16.number(0xc020), Some(-2.5));
        assert_eq!(Element::F32.number(f32::MIN.to_bits().into()), Some(f32::MIN.into()));
        assert_eq!(Element::F64.number((-2.5f64).to_bits()), Some(-2.5));
        for element in [Element::F16, Element::Bf16, Element::F32] {
            let number = |bits| element.number(bits).unwrap();
            let lowest = element.lowest().unwrap();
            assert!(number(lowest).is_finite() && number(lowest + 1) == f64::NEG_INFINITY, "{element:?}");
        }
        assert_eq!((Element::I64.number(1), Element::Byte.lowest()), (None, None));
    }

    #[test]
    fn bits_are_integers() {
        let all = [(Element::U8, 0xff, 255), (Element::U32, 0xffff_ffff, 0xffff_ffff), (Element::I16, 0xffff, -1)];
        for (element, bits, integer) in all.into_iter().chain([(Element::I32, 0xffff_fffe, -2)]) {
            assert_eq!(element.integer(bits), Some(integer));
        }
        assert_eq!((Element::I64.integer(u64::MAX), Element::F16.integer(1)), (Some(-1), None));
    }

    #[test]
    fn names_are_those_of_kernels() {
        assert_eq!(Element::two_of_names("u32_f16"), Some((Element::U32, Element::F16)));
        assert_eq!(Element::two_of_names("f8_e4m3_u8"), Some((Element::F8, Element::U8)));
        assert_eq!(Element::two_of_names("i64_fp8_e4m3"), Some((Element::I64, Element::F8)));
        assert_eq!(Element::two_of_names("f8_e4m3_f8_e4m3"), Some((Element::F8, Element::F8)));
        assert_eq!((Element::two_of_names("f8_e4m3"), Element::of_name("q4_0")), (None, None));
    }
}
