//! Operators of whole rows.

use candle::Tensor;
use opara_candle::ops::{self, Activation};

use super::{case, floats, Case, Operand, Sizes};

pub(super) fn cases() -> Vec<Case> {
    let all = |[b, n, m, _]: Sizes| vec![b, n, m];
    let heads = |[b, n, m, k]: Sizes| floats(&[&[b, 2, n, m], &[b, 2, k, m], &[b, 2, k, m], &[b, 1, 1, k]]);
    vec![
        case("softmax_last_dim", |[b, n, m, _]| floats(&[&[b, n, m]]), all, |t| ops::softmax_last_dim(&t[0])),
        case(
            "add_softmax",
            |[b, n, m, _]| floats(&[&[b, n, m], &[b, 1, m]]),
            all,
            |t| ops::add_softmax(&t[0], Some(&t[1])),
        ),
        case(
            "layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            |t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-3),
        ),
        case(
            "add_layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[b, n, m], &[m], &[m]]),
            all,
            |t| ops::add_layer_norm(&t[0], Some(&t[1]), &t[2], &t[3], &t[4], 1e-3),
        ),
        case("rms_norm", |[b, n, m, _]| floats(&[&[b, n, m], &[m]]), all, |t| ops::rms_norm(&t[0], &t[1], 1e-3)),
        Case {
            name: "add_rms_norm",
            operands: Box::new(|[b, n, m, _]| floats(&[&[b, n, m], &[b, n, m], &[m]])),
            results: Box::new(|[b, n, m, _]| vec![vec![b, n, m]; 2]),
            run: Box::new(|t| {
                let (sum, normed) = ops::add_rms_norm(&t[0], &t[1], &t[2], 1e-3)?;
                Ok(vec![sum, normed])
            }),
        },
        case(
            "group_norm",
            |[b, n, m, k]| floats(&[&[b, 2 * n, m, k], &[2 * n], &[2 * n]]),
            |[b, n, m, k]| vec![b, 2 * n, m, k],
            |t| ops::group_norm(&t[0], &t[1], &t[2], 2, 1e-3, Activation::Silu),
        ),
        case(
            "attention",
            heads,
            |[b, n, m, _]| vec![b, 2, n, m],
            |t| ops::attention(&t[0], &t[1], &t[2], Some(&t[3]), 0.5),
        ),
        case(
            "attention",
            |[b, n, m, k]| floats(&[&[b, 4, n, m], &[b, 2, k, m], &[b, 2, k, m]]),
            |[b, n, m, _]| vec![b, 4, n, m],
            |t| ops::attention(&t[0], &t[1], &t[2], None, 1.),
        ),
        case(
            "ranged_attention",
            |[b, n, m, k]| {
                [floats(&[&[b, 4, n, m], &[b, 2, k, m], &[b, 2, k, m]]), vec![Operand::Ids(vec![b, n], k as u32)]]
                    .concat()
            },
            |[b, n, m, _]| vec![b, 4, n, m],
            |t| {
                // Every query sees a key at least.
                let ranges = Tensor::stack(&[t[3].zeros_like()?, (&t[3] + 1.)?], 2)?;
                ops::ranged_attention(&t[0], &t[1], &t[2], &ranges, 0.5)
            },
        ),
        case(
            "range_means",
            |[b, n, m, _]| [floats(&[&[n, m]]), vec![Operand::Ids(vec![b, 2], n as u32 + 2)]].concat(),
            |[b, _, m, _]| vec![b, m],
            |t| ops::range_means(&t[0], &t[1]),
        ),
        case(
            "mean_keepdim",
            |[b, n, m, _]| floats(&[&[b, n, m]]),
            |[b, _, m, _]| vec![b, 1, m],
            |t| ops::mean_keepdim(&t[0], 1),
        ),
        case(
            "sum_keepdim",
            |[b, n, m, _]| floats(&[&[b, n, m]]),
            |[b, _, m, _]| vec![b, 1, m],
            |t| ops::sum_keepdim(&t[0], 1),
        ),
        case("rope", turned, |[b, n, m, k]| vec![b, n, m, 2 * k], |t| ops::rope(&t[0], &t[1], &t[2])),
        case("rope_i", turned, |[b, n, m, k]| vec![b, n, m, 2 * k], |t| ops::rope_i(&t[0], &t[1], &t[2])),
        case("argmax", |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, n, ..]| vec![b, n], |t| ops::argmax(&t[0], 2)),
        case("argmax", |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, _, m, _]| vec![b, m], |t| ops::argmax(&t[0], 1)),
    ]
}

/// Texts of several heads, cosines and sines.
fn turned([b, n, m, k]: Sizes) -> Vec<Operand> {
    floats(&[&[b, n, m, 2 * k], &[m, k], &[m, k]])
}
