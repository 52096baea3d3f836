//! Layers.

use candle::{DType, Device::Cpu, Module, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::{self, Activation, ConvConfig};
use opara_candle::{candle_nn, nn};

use super::{
    case, floats, Case,
    Operand::{Floats, Ids},
    Sizes,
};

/// A layer whose weights are operands.
fn weights(names: &[&str], tensors: &[Tensor]) -> VarBuilder<'static> {
    let named = names.iter().zip(tensors).map(|(name, tensor)| (name.to_string(), tensor.clone()));
    VarBuilder::from_tensors(named.collect(), tensors[0].dtype(), &Cpu)
}

pub(super) fn cases() -> Vec<Case> {
    let linear = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[k, m], &[k]]);
    let rows = |[b, n, _, k]: Sizes| vec![b, n, k];
    let of = |t: &[Tensor]| nn::Linear::new("linear", t[1].clone(), Some(t[2].clone()));
    let all = |[b, n, m, _]: Sizes| vec![b, n, m];
    let size = |t: &Tensor| t.dim(candle::D::Minus1);
    vec![
        case("nn::linear", linear, rows, |t| {
            let (out, k) = t[1].dims2()?;
            nn::linear(k, out, weights(&["weight", "bias"], &t[1..]))?.forward(&t[0])
        }),
        case(
            "nn::linear_no_bias",
            |[b, n, m, k]| floats(&[&[b, n, m], &[k, m]]),
            rows,
            |t| {
                let (out, k) = t[1].dims2()?;
                nn::linear_no_bias(k, out, weights(&["weight"], &t[1..]))?.forward(&t[0])
            },
        ),
        case("nn::Linear::forward_act", linear, rows, move |t| of(t).forward_act(&t[0], Activation::Gelu)),
        case("nn::Linear::forward_no_bias", linear, rows, move |t| ops::add(&of(t).forward_no_bias(&t[0])?, &t[2])),
        case(
            "nn::Linear::forward_heads",
            |[b, n, m, k]| floats(&[&[b, n, m], &[2 * k, m], &[2 * k]]),
            |[b, n, _, k]| vec![b, 2, n, k],
            move |t| of(t).forward_heads(&t[0], 2, 0.5),
        ),
        case("nn::PackedLinear", linear, rows, move |t| of(t).packed()?.forward(&t[0])),
        case("nn::PackedLinear::forward_act", linear, rows, move |t| {
            of(t).packed()?.forward_act(&t[0], Activation::Gelu)
        }),
        case("nn::PackedLinear::forward_no_bias", linear, rows, move |t| {
            ops::add(&of(t).packed()?.forward_no_bias(&t[0])?, &t[2])
        }),
        case(
            "nn::layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            move |t| nn::layer_norm(size(&t[0])?, 1e-3, weights(&["weight", "bias"], &t[1..]))?.forward(&t[0]),
        ),
        case(
            "nn::LayerNorm::forward_add",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            move |t| {
                let norm = nn::layer_norm(size(&t[0])?, 1e-3, weights(&["weight", "bias"], &t[1..]))?;
                norm.forward_add(&t[0], Some(&t[2]), &t[0])
            },
        ),
        case(
            "nn::rms_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m]]),
            all,
            move |t| nn::rms_norm(size(&t[0])?, 1e-3, weights(&["weight"], &t[1..]))?.forward(&t[0]),
        ),
        case(
            "nn::RmsNorm::forward_add",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m]]),
            all,
            |t| Ok(nn::RmsNorm::new("norm", t[1].clone(), 1e-3).forward_add(&t[0], &t[0])?.1),
        ),
        case(
            "nn::embedding",
            |[b, n, m, k]| vec![Ids(vec![b, k], n as u32), Floats(vec![n, m])],
            |[b, _, m, k]| vec![b, k, m],
            |t| {
                let (rows, hidden) = t[1].dims2()?;
                nn::embedding(rows, hidden, weights(&["weight"], &t[1..]))?.forward(&t[0])
            },
        ),
        case(
            "nn::conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 3, 3], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| {
                let (out, input, ..) = t[1].dims4()?;
                let (config, vb) = (ConvConfig::default().padding(1), weights(&["weight", "bias"], &t[1..]));
                nn::conv2d(input, out, (3, 3), config, vb)?.forward(&t[0])
            },
        ),
        case(
            "nn::conv2d_norm",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 1, 1], &[k], &[k], &[k], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| {
                let (out, input, ..) = t[1].dims4()?;
                // A variance is positive.
                let variance = ops::affine(&ops::sqr(&t[5])?, 1., 0.5)?;
                let t = [&t[..5], &[variance]].concat();
                let names = ["conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"];
                let vb = weights(&names, &t[1..]);
                let norm = nn::batch_norm(out, 1e-3, vb.pp("norm"))?;
                nn::conv2d_norm(input, out, (1, 1), ConvConfig::default(), &norm, vb.pp("conv"))?.forward(&t[0])
            },
        ),
        Case {
            name: "nn::KvCache::append",
            operands: Box::new(|[b, n, m, _]| floats(&[&[b, 2, n, m], &[b, 2, n, m]])),
            results: Box::new(|[b, _, m, _]| vec![vec![b, 2, 8, m]; 2]),
            run: Box::new(|t| {
                let (batch, heads, _, dim) = t[0].dims4()?;
                let cache = nn::KvCache::new(1, (batch, heads, dim), 8, t[0].dtype(), &Cpu)?;
                let (k, v) = cache.append(0, &t[0], &t[1])?;
                Ok(vec![k, v])
            }),
        },
        case(
            "nn::KvCache::rows",
            |[_, _, m, _]| floats(&[&[8, m]]),
            |[_, _, m, _]| vec![3, m],
            |t| nn::KvCache::new(1, (1, 1, 1), 8, DType::F32, &Cpu)?.rows(&t[0], 3),
        ),
    ]
}
