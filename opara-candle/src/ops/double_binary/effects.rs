//! Memory effects of the operators on two operands of f64.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // double_binary.cu: numel, columns, middle, inner, strides of x, strides of y, x, y, out
    writes("opara_double_add_", 14, Elements(&[Argument(0)])),
    writes("opara_double_sub_", 14, Elements(&[Argument(0)])),
    writes("opara_double_mul_", 14, Elements(&[Argument(0)])),
    writes("opara_double_div_", 14, Elements(&[Argument(0)])),
];
