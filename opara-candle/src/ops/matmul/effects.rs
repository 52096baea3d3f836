//! Memory effects of the matmul kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // matmul.cu: rows, columns, inner, activation, x, weight, bias, out; the bias may be null
    writes("opara_product_", 7, Elements(&[Argument(0), Argument(1)])),
    // matmul.cu: rows, columns, inner, activation, ten sizes of windows, x, weight, bias, residual, out; the residual may be null
    writes("opara_convolution_", 18, Elements(&[Argument(0), Argument(1)])),
];
