//! Memory effects of the GEMV kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // gemv.cuh, gemv_tensor.cuh: numel, columns, inner, splits, activation, eps, x, scale, weight, bias, residual, out; scale, bias and residual
    // may be null
    writes("opara_gemv_", 11, Elements(&[Argument(0)])).early(&[8, 9]),
    // gemv.cuh, gemv_tensor.cuh: numel, columns, inner, splits, activation, eps, x, scale, weight, bias, out; scale and bias may be null
    writes("opara_gated_gemv_", 10, Elements(&[Argument(0)])).early(&[8, 9]),
];
