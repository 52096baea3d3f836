//! Operators of texts that are written.

use candle::{DType, Device::Cpu, Tensor};
use opara_candle::ops::{self, Activation, CachedAttention, NewTokens, Sampler, Sampling};

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
                let new = NewTokens {
                    qkv: &t[0],
                    start: &t[1],
                    counts: None,
                    pages: None,
                    rotary: Some(&rotary),
                    norms: None,
                    by_distance: None,
                };
                ops::cached_attention(&of, &cache, new)
            },
        ),
        case(
            "top_k",
            |[b, n, m, _]| vec![Floats(vec![b, n, m])],
            |[b, n, ..]| vec![b, n, 2],
            |t| Ok(ops::top_k(&t[0], 2)?.0),
        ),
        case(
            "moe",
            |[b, n, m, _]| {
                let pairs = vec![b, n, 2];
                let (gate_up, down) = (vec![3, 2 * n, m], vec![3, m, n]);
                vec![Floats(vec![b, n, m]), Floats(pairs.clone()), Ids(pairs, 3), Floats(gate_up), Floats(down)]
            },
            |[b, n, m, _]| vec![b, n, m],
            |t| ops::moe(&t[0], (&t[1], &t[2]), &t[3], &t[4], Activation::Silu),
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
