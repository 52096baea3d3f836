//! Memory effects of the kernels for quantised weights.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // quantized.cuh, quantized_tensor.cuh: numel, columns, inner, splits, eps, x, norm, codes, scales, bias, residual, out; norm, bias
    // and residual may be null
    writes("opara_quantized_gemv_", 11, Elements(&[Argument(0)])).early(&[7, 8]),
    // quantized.cuh, quantized_tensor.cuh: numel, columns, inner, splits, activation, eps, x, norm, codes, scales, bias, out; norm and
    // bias may be null
    writes("opara_quantized_gated_gemv_", 11, Elements(&[Argument(0)])).early(&[8, 9]),
    // quantized.cuh: numel, columns, rows of the weight, ids, codes, scales, out; ids may be null
    writes("opara_dequantize_", 6, Elements(&[Argument(0)])),
];
