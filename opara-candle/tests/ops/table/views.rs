//! Operators that move or pick elements.

use opara_candle::ops::{self, Activation};

use super::{
    case, floats, Case,
    Operand::{Floats, Ids},
    Sizes,
};

pub(super) fn cases() -> Vec<Case> {
    let one = |[b, n, m, _]: Sizes| floats(&[&[b, n, m]]);
    vec![
        case(
            "reshape",
            one,
            |[b, n, m, _]| vec![m, b, n],
            |t| {
                let (b, n, m) = t[0].dims3()?;
                ops::reshape(&t[0], (m, b, n))
            },
        ),
        case(
            "narrow",
            one,
            |[b, n, m, _]| vec![b, n / 2, m],
            |t| {
                let n = t[0].dim(1)?;
                ops::narrow(&t[0], 1, n / 2, n / 2)
            },
        ),
        case(
            "broadcast_as",
            one,
            |[b, n, m, _]| vec![2, b, n, m],
            |t| {
                let (b, n, m) = t[0].dims3()?;
                ops::broadcast_as(&t[0], (2, b, n, m))
            },
        ),
        case("transpose", one, |[b, n, m, _]| vec![b, m, n], |t| ops::transpose(&t[0], 1, 2)),
        case("permute", one, |[b, n, m, _]| vec![m, b, n], |t| ops::permute(&t[0], &[2, 0, 1])),
        case("unsqueeze", one, |[b, n, m, _]| vec![b, 1, n, m], |t| ops::unsqueeze(&t[0], 1)),
        case("squeeze", |[b, n, ..]| floats(&[&[b, 1, n]]), |[b, n, ..]| vec![b, n], |t| ops::squeeze(&t[0], 1)),
        case("contiguous", one, |[b, n, m, _]| vec![b, n, m], |t| ops::contiguous(&t[0])),
        case(
            "cat",
            |[b, n, m, k]| floats(&[&[b, n, m], &[b, k, m]]),
            |[b, n, m, k]| vec![b, n + k, m],
            |t| ops::cat(&[&t[0], &t[1]], 1),
        ),
        case(
            "cat_sums",
            |[b, n, m, k]| floats(&[&[b, n, m], &[b, n, m], &[b, k, m]]),
            |[b, n, m, k]| vec![b, n + k, m],
            |t| ops::cat_sums(&[(&t[0], Some(&t[1])), (&t[2], None)], 1, Activation::Relu),
        ),
        case(
            "index_select",
            |[b, n, m, k]| vec![Floats(vec![b, n, m]), Ids(vec![k], n as u32)],
            |[b, _, m, k]| vec![b, k, m],
            |t| ops::index_select(&t[0], &t[1], 1),
        ),
        case(
            "embedding",
            |[b, n, m, k]| vec![Floats(vec![n, m]), Ids(vec![b, k], n as u32)],
            |[b, _, m, k]| vec![b, k, m],
            |t| ops::embedding(&t[0], &t[1]),
        ),
        case(
            "split_heads",
            |[b, n, m, _]| floats(&[&[b, n, 2 * m], &[2 * m]]),
            |[b, n, m, _]| vec![b, 2, n, m],
            |t| ops::split_heads(&t[0], Some(&t[1]), 2, 0.5),
        ),
        case(
            "merge_heads",
            |[b, n, m, k]| floats(&[&[b, n, m, k]]),
            |[b, n, m, k]| vec![b, m, n * k],
            |t| ops::merge_heads(&t[0]),
        ),
    ]
}
