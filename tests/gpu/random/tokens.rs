//! Layers of tokens, `(batch, tokens, width)`.

use std::ops::{Add, Mul};

use candle::{DType, Device, Result, Tensor, D};
use candle_nn::ops::{layer_norm, rms_norm, sigmoid, silu};

use super::pass::Pass;

/// A norm of rows.
pub fn norm(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let (weight, bias) = (pass.weight(width, 1.)?, pass.weight(width, 0.5)?);
    let how = pass.named(&["layer norm", "rms norm", "layer norm, spelled", "rms norm, spelled", "rms norm in f32"]);
    let spelled_layer_norm = |x: &Tensor| {
        let apart = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = apart.sqr()?.mean_keepdim(D::Minus1)?;
        apart.broadcast_div(&(variance + 1e-5)?.sqrt()?)?.broadcast_mul(&weight)?.broadcast_add(&bias)
    };
    let spelled_rms_norm = |x: &Tensor| {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean + 1e-5)?.sqrt()?)
    };
    match (how, pass.in_double) {
        ("layer norm", false) => layer_norm(&x.contiguous()?, &weight, &bias, 1e-5),
        ("rms norm", false) => rms_norm(&x.contiguous()?, &weight, 1e-5),
        ("layer norm" | "layer norm, spelled", _) => spelled_layer_norm(x),
        ("rms norm in f32", _) => {
            spelled_rms_norm(&x.to_dtype(pass.wide())?)?.to_dtype(pass.own())?.broadcast_mul(&weight)
        }
        _ => spelled_rms_norm(x)?.broadcast_mul(&weight),
    }
}

/// An activation by its name.
fn activate(how: &str, x: &Tensor) -> Result<Tensor> {
    match how {
        "gelu" => x.gelu(),
        "gelu_erf" => x.gelu_erf(),
        "silu" => silu(x),
        "relu" => x.relu(),
        "tanh" => x.tanh(),
        "swish" => x * sigmoid(x)?,
        "squared" => x.relu()?.sqr(),
        _ => sigmoid(x),
    }
}

const ACTIVATIONS: [&str; 8] = ["gelu", "gelu_erf", "silu", "relu", "tanh", "swish", "squared", "sigmoid"];

/// Two products, and an activation or a gate in between.
pub fn mlp(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let inner = pass.one_of(&[64, 96, 100, 256]);
    let has_bias = pass.rng.bool();
    let y = match pass.named(&["two products", "gated", "gated halves"]) {
        "gated" => {
            let gate = pass.linear(x, inner, has_bias)?;
            let how = pass.named(&ACTIVATIONS);
            activate(how, &gate)? * pass.linear(x, inner, has_bias)?
        }
        "gated halves" => {
            let both = pass.linear(x, 2 * inner, has_bias)?.chunk(2, D::Minus1)?;
            let how = pass.named(&ACTIVATIONS);
            activate(how, &both[0].contiguous()?)? * &both[1]
        }
        _ => {
            let y = pass.linear(x, inner, has_bias)?;
            let how = pass.named(&ACTIVATIONS);
            activate(how, &y)
        }
    };
    pass.linear(&y?, width, has_bias)
}

/// Views, copies and concatenations that keep the shape.
pub fn shuffle(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    match pass.named(&["halves", "flip", "stack", "transposed", "shifted", "padded", "interleaved", "repeated"]) {
        "halves" => {
            let half = width / 2;
            Tensor::cat(&[x.narrow(2, half, width - half)?, x.narrow(2, 0, half)?.neg()?], 2)
        }
        "flip" => {
            let ids = Tensor::from_iter((0..tokens as u32).rev(), pass.device())?;
            x.contiguous()?.index_select(&ids, 1)
        }
        "stack" => Tensor::stack(&[x, &x.relu()?], 1)?.sum(1),
        "transposed" => {
            let mixing = pass.weight((tokens, tokens), 1. / (tokens as f64).sqrt())?;
            let y = x.transpose(1, 2)?.broadcast_matmul(&mixing)?;
            y.transpose(1, 2)?.contiguous()
        }
        "shifted" if tokens > 1 => Tensor::cat(&[x.narrow(1, tokens - 1, 1)?, x.narrow(1, 0, tokens - 1)?], 1)?.add(x),
        "padded" => x.pad_with_zeros(1, 1, 1)?.narrow(1, 0, tokens)?.add(x),
        "interleaved" => {
            let y = x.reshape((batch, tokens, width / 2, 2))?;
            let [even, odd] = [0, 1].map(|at| y.narrow(3, at, 1));
            Tensor::cat(&[odd?.neg()?, even?], 3)?.reshape((batch, tokens, width))
        }
        _ => {
            let first = x.narrow(1, 0, 1)?.repeat((1, tokens, 1))?;
            (first + x)? * 0.5
        }
    }
}

/// Reductions that are spread over all tokens again.
pub fn reduce(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let dim = pass.one_of(&[1, 2]);
    match pass.named(&["mean", "max", "sum", "min", "masked mean"]) {
        "mean" => x.broadcast_sub(&x.mean_keepdim(dim)?),
        "max" => x.broadcast_add(&x.max_keepdim(dim)?),
        "sum" => x.broadcast_add(&(x.sum_keepdim(dim)? * 0.01)?),
        "min" => x.broadcast_sub(&x.min_keepdim(dim)?),
        _ => {
            let tokens = x.dim(1)?;
            let places = Tensor::arange(0u32, tokens as u32, pass.device())?.reshape((1, tokens))?;
            let counts = places.broadcast_lt(&pass.lengths.reshape(((), 1))?)?.to_dtype(pass.own())?.unsqueeze(2)?;
            let sum = x.broadcast_mul(&counts)?.sum_keepdim(1)?;
            x.broadcast_add(&sum.broadcast_div(&(counts.sum_keepdim(1)? + 1.)?)?)
        }
    }
}

/// Element-wise operators.
pub fn elements(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    match pass.named(&[
        "affine",
        "activation",
        "scaled",
        "clamped",
        "chosen",
        "quotient",
        "powers",
        "layer scale in f32",
    ]) {
        "affine" => x.affine(0.7, -0.1),
        "activation" => {
            let how = pass.named(&ACTIVATIONS);
            activate(how, x)
        }
        "scaled" => x.broadcast_mul(&pass.weight(width, 1.)?)?.broadcast_add(&pass.weight(width, 1.)?),
        "clamped" => x.clamp(-2., 2.),
        "chosen" => x.gt(0.)?.where_cond(x, &(x * 0.1)?),
        "quotient" => x.broadcast_div(&(x.abs()? + 1.)?),
        "powers" => (x.sqr()? + 0.5)?.sqrt()?.mul(x),
        _ => {
            let scale = pass.weight(width, 1.)?.to_dtype(pass.wide())?;
            x.to_dtype(pass.wide())?.broadcast_mul(&scale)?.to_dtype(pass.own())
        }
    }
}

/// Operators that move elements to other places by integers, or go along a dimension; they keep the shape.
pub fn places(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    let x = &x.contiguous()?;
    // Tokens in an order that the module holds.
    let order = |pass: &mut Pass, of: usize| {
        let mut ids: Vec<u32> = (0..of as u32).collect();
        pass.rng.shuffle(&mut ids);
        pass.constant(|| Tensor::from_vec(ids, of, &Device::Cpu))
    };
    match pass.named(&[
        "cumulated",
        "sorted",
        "gathered",
        "added to places",
        "scattered",
        "rolled",
        "columns' softmax",
        "variance",
        "logarithm of a sum",
        "rotary",
        "rotary of neighbours",
        "slices in place",
        "chunks",
        "larger ones",
        "smaller ones",
        "powf",
        "elu",
        "erf",
        "every second",
        "outer product",
        "lower triangle",
        "edges repeated",
        "bilinear",
        "first of a batch",
    ]) {
        "cumulated" => (x.cumsum(1)? * (1. / tokens as f64))?.add(x),
        "sorted" => {
            let ids = x.arg_sort_last_dim(pass.rng.bool())?;
            x.gather(&ids, 2)?.add(x)
        }
        "gathered" => {
            let ids =
                order(pass, tokens)?.reshape((1, tokens, 1))?.broadcast_as((batch, tokens, width))?.contiguous()?;
            x.gather(&ids, 1)
        }
        "added to places" => {
            let part = tokens.div_ceil(2);
            x.index_add(
                &order(pass, tokens)?.narrow(0, 0, part)?.contiguous()?,
                &x.narrow(1, 0, part)?.contiguous()?,
                1,
            )
        }
        "scattered" => {
            let ids = order(pass, width)?.reshape((1, 1, width))?.broadcast_as((batch, tokens, width))?.contiguous()?;
            x.zeros_like()?.scatter_add(&ids, x, 2)
        }
        "rolled" => x.roll(1 + (tokens / 3) as i32, 1),
        "columns' softmax" => candle_nn::ops::softmax(x, 1)?.add(x),
        "variance" if tokens > 1 => x.broadcast_div(&(x.var_keepdim(1)? + 1.)?),
        "logarithm of a sum" => x.broadcast_sub(&x.log_sum_exp(D::Minus1)?.unsqueeze(D::Minus1)?),
        how @ ("rotary" | "rotary of neighbours") => {
            let half = width / 4;
            let angles = (0..tokens * half).map(|at| (at / half) as f64 / 50f64.powf((at % half) as f64 / half as f64));
            let angles = Tensor::from_iter(angles, &Device::Cpu)?.reshape((tokens, half))?;
            let [cos, sin] = [angles.cos()?, angles.sin()?];
            let [cos, sin] = [cos, sin].map(|of| of.to_dtype(pass.module_dtype())?.to_dtype(pass.own()));
            let (cos, sin) = (cos?.to_device(pass.device())?, sin?.to_device(pass.device())?);
            let heads = x.reshape((batch, tokens, 2, width / 2))?.transpose(1, 2)?.contiguous()?;
            let turned = match how {
                "rotary" => candle_nn::rotary_emb::rope(&heads, &cos, &sin)?,
                _ => candle_nn::rotary_emb::rope_i(&heads, &cos, &sin)?,
            };
            turned.transpose(1, 2)?.reshape((batch, tokens, width))
        }
        "slices in place" => {
            let (from, count) = (tokens / 3, tokens.div_ceil(3));
            let half = (x.narrow(1, 0, count)? * 0.5)?.contiguous()?;
            x.slice_scatter(&half, 1, from)
        }
        "chunks" => {
            let mut chunks = x.chunk(4, 2)?;
            chunks.reverse();
            Tensor::cat(&chunks, 2)
        }
        "larger ones" => x.maximum(&x.roll(1, 2)?.contiguous()?),
        "smaller ones" => x.minimum(&x.roll(5, 2)?.contiguous()?),
        "powf" => (x.abs()? + 0.1)?.powf(1.7)?.tanh(),
        "elu" => x.elu(0.8),
        "erf" => x.erf(),
        "every second" => {
            let y = x.reshape((batch, tokens, width / 2, 2))?;
            y.narrow(3, 1, 1)?.broadcast_as(y.shape())?.reshape((batch, tokens, width))
        }
        "outer product" => {
            let (one, other) = (x.narrow(2, 0, 8)?, x.narrow(2, width - width / 8, width / 8)?);
            one.unsqueeze(3)?.broadcast_mul(&other.unsqueeze(2)?)?.reshape((batch, tokens, width))?.tanh()
        }
        "lower triangle" => {
            let mask = Tensor::tril2(tokens, pass.own(), pass.device())?;
            mask.broadcast_as((batch, tokens, tokens))?.contiguous()?.matmul(x)? * (1. / tokens as f64)
        }
        "edges repeated" => x.pad_with_same(1, 1, 2)?.narrow(1, 2, tokens),
        "bilinear" if tokens > 1 => {
            let y = x.reshape((batch, 1, tokens, width))?.upsample_bilinear2d(2 * tokens, width, false)?;
            y.narrow(2, tokens / 2, tokens)?.contiguous()?.squeeze(1)
        }
        _ => x.narrow(0, 0, 1)?.broadcast_add(&x.narrow(2, 0, 1)?),
    }
}

/// The types of modules.
pub const DTYPES: [DType; 3] = [DType::F16, DType::F32, DType::BF16];
