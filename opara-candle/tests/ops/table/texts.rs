//! Operators of texts that are written.

use candle::{DType, Device::Cpu, Tensor};
use opara_candle::ops::{self, CachedAttention, NewTokens, Sampler, Sampling};

use super::{
    case, Case,
    Operand::{Floats, Ids},
};

pub(super) fn cases() -> Vec<Case> {
    let dim = |m: usize| 2 * m;
    vec![
        case(
            "cached_attention",
            move |[b, n, m, _]| vec![Floats(vec![b, n, 8 * dim(m)]), Ids(vec![b], 3), Floats(vec![8, dim(m)])],
            move |[b, n, m, _]| vec![b, n, 4 * dim(m)],
            |t| {
                let head_dim = t[2].dim(1)?;
                let of = CachedAttention { heads: 4, kv_heads: 2, head_dim, scale: 0.5, window: None, eps: 1e-3 };
                let cache = Tensor::zeros((t[0].dim(0)?, 2, 2, 8, head_dim), t[0].dtype(), &Cpu)?;
                let rotary = t[2].to_dtype(DType::F32)?;
                let new = NewTokens { qkv: &t[0], start: &t[1], rotary: Some(&rotary), norms: None, by_distance: None };
                ops::cached_attention(&of, &cache, new)
            },
        ),
        case(
            "sample",
            |[b, _, m, _]| vec![Floats(vec![b, m]), Ids(vec![b], 9)],
            |[b, ..]| vec![b],
            |t| {
                let rows = vec![Sampling { temperature: 0.8, seed: 3, ..Sampling::default() }; t[0].dim(0)?];
                ops::sample(&t[0], &Sampler::new(&rows, &Cpu)?, &t[1], None)
            },
        ),
    ]
}
