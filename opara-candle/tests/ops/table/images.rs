//! Operators of images.

use opara_candle::ops::{self, Activation, ConvConfig, Padding, PoolConfig};

use super::{case, floats, Case, Sizes};

pub(super) fn cases() -> Vec<Case> {
    let image = |[b, n, m, _]: Sizes| floats(&[&[b, n, m, m]]);
    let same = ConvConfig::default().padding(1);
    vec![
        case(
            "conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 3, 3], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            move |t| ops::conv2d(&t[0], &t[1], Some(&t[2]), &same.activation(Activation::Silu)),
        ),
        case(
            "conv2d",
            |[b, n, m, _]| floats(&[&[b, n, m, m], &[n, 1, 3, 3]]),
            |[b, n, m, _]| vec![b, n, m, m],
            move |t| ops::conv2d(&t[0], &t[1], None, &same.groups(t[0].dim(1)?)),
        ),
        case(
            "add_conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 1, 1], &[k], &[b, k, m, m]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| ops::add_conv2d(&t[0], &t[1], Some(&t[2]), &t[3], &ConvConfig::default()),
        ),
        case(
            "conv2d_weight",
            |[_, n, m, k]| floats(&[&[n, m, k, k]]),
            |[_, n, m, k]| vec![n, m, k, k],
            |t| ops::conv2d_weight(&t[0], 1),
        ),
        case(
            "max_pool2d",
            image,
            |[b, n, m, _]| vec![b, n, m / 2, m / 2],
            |t| ops::max_pool2d(&t[0], &PoolConfig::new(2, 2)),
        ),
        case(
            "avg_pool2d",
            image,
            |[b, n, m, _]| vec![b, n, m, m],
            |t| ops::avg_pool2d(&t[0], &PoolConfig::new(3, 1).padding(1)),
        ),
        case("global_avg_pool2d", image, |[b, n, ..]| vec![b, n], |t| ops::global_avg_pool2d(&t[0])),
        case(
            "subsample",
            image,
            |[b, n, m, _]| vec![b, n, m.div_ceil(2), m.div_ceil(2)],
            |t| ops::subsample(&t[0], 1, 2),
        ),
        case(
            "upsample_nearest2d",
            image,
            |[b, n, m, _]| vec![b, n, 2 * m, 2 * m],
            |t| {
                let m = t[0].dim(2)?;
                ops::upsample_nearest2d(&t[0], 2 * m, 2 * m)
            },
        ),
        case(
            "pad",
            image,
            |[b, n, m, _]| vec![b, n, m + 3, m + 3],
            |t| ops::pad(&t[0], Padding { top: 1, bottom: 2, left: 3, right: 0 }),
        ),
    ]
}
