//! Products of matrices.

use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device::Cpu, Result};
use opara_candle::ops::{self, Activation, PackedWeight, QuantizedWeight};

use super::{case, floats, Case, Operand::Ids, Sizes};
use crate::values;

/// A quantised weight `(rows, 32)`.
fn quantized(rows: usize) -> Result<QuantizedWeight> {
    let weight = values(9, &[rows, 32], DType::F32)?;
    QuantizedWeight::new(&[&QTensor::quantize(&weight, GgmlDType::Q8_0)?], &Cpu)
}

pub(super) fn cases() -> Vec<Case> {
    let linear = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[k, m], &[k]]);
    let normed = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[m], &[k, m], &[k]]);
    let rows = |[b, n, _, k]: Sizes| vec![b, n, k];
    vec![
        case("matmul", |[b, n, m, k]| floats(&[&[b, n, m], &[b, m, k]]), rows, |t| ops::matmul(&t[0], &t[1])),
        case(
            "matmul",
            |[b, n, m, k]| floats(&[&[b, 2, n, m], &[m, k]]),
            |[b, n, _, k]| vec![b, 2, n, k],
            |t| {
                let (b, two, ..) = t[0].dims4()?;
                ops::matmul(&t[0], &ops::broadcast_as(&t[1], [&[b, two], t[1].dims()].concat())?)
            },
        ),
        case(
            "matmul",
            |[b, n, m, k]| floats(&[&[b, 2, 1, n, m], &[b, 2, 1, m, k]]),
            |[b, n, _, k]| vec![b, 2, 1, n, k],
            |t| ops::matmul(&t[0], &t[1]),
        ),
        case("linear", linear, rows, |t| ops::linear(&t[0], &t[1], Some(&t[2]))),
        case(
            "linear",
            |[b, n, m, k]| floats(&[&[b, n, 2, m], &[k, m]]),
            |[b, n, _, k]| vec![b, n, 2, k],
            |t| ops::linear(&t[0], &t[1], None),
        ),
        case(
            "linear",
            |[_, _, m, k]| floats(&[&[m], &[k, m], &[k]]),
            |[_, _, _, k]| vec![k],
            |t| ops::linear(&t[0], &t[1], Some(&t[2])),
        ),
        case("linear_act", linear, rows, |t| ops::linear_act(&t[0], &t[1], Some(&t[2]), Activation::Gelu)),
        case("linear_packed", linear, rows, |t| match PackedWeight::new(&t[1])? {
            Some(packed) => ops::linear_packed(&t[0], &packed, Some(&t[2]), Activation::Silu),
            None => ops::linear_act(&t[0], &t[1], Some(&t[2]), Activation::Silu),
        }),
        case("norm_linear", normed, rows, |t| ops::norm_linear(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), None)),
        case(
            "norm_linear",
            |[b, n, m, k]| floats(&[&[b, n, m], &[k, m], &[b, n, k]]),
            rows,
            |t| ops::norm_linear(&t[0], None, &t[1], None, Some(&t[2])),
        ),
        case("norm_linear_act", normed, rows, |t| {
            ops::norm_linear_act(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), Activation::Silu)
        }),
        case(
            "norm_gated",
            |[b, n, m, k]| floats(&[&[b, n, m], &[m], &[2 * k, m], &[2 * k]]),
            rows,
            |t| ops::norm_gated(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), Activation::Silu),
        ),
        case(
            "gated",
            |[b, n, m, _]| floats(&[&[b, n, 2 * m]]),
            |[b, n, m, _]| vec![b, n, m],
            |t| ops::gated(&t[0], Activation::Silu),
        ),
        case(
            "quantized_linear",
            |[b, n, ..]| floats(&[&[b, n, 32], &[32], &[10], &[b, n, 10]]),
            |[b, n, ..]| vec![b, n, 10],
            |t| ops::quantized_linear(&t[0], Some((&t[1], 1e-3)), &quantized(10)?, Some(&t[2]), Some(&t[3])),
        ),
        case(
            "quantized_gated",
            |[b, n, ..]| floats(&[&[b, n, 32], &[10]]),
            |[b, n, ..]| vec![b, n, 5],
            |t| ops::quantized_gated(&t[0], None, &quantized(10)?, Some(&t[1]), Activation::Silu),
        ),
        case(
            "quantized_embedding",
            |[b, n, ..]| vec![Ids(vec![b, n], 10)],
            |[b, n, ..]| vec![b, n, 32],
            |t| ops::quantized_embedding(&quantized(10)?, &t[0], DType::F32),
        ),
        case("dequantize", |_| vec![], |_| vec![10, 32], |_| quantized(10)?.dequantize(DType::F32)),
    ]
}
