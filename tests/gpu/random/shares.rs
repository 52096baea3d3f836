//! What scores become: shares of each key.

use candle::{Result, Tensor, D};
use candle_nn::ops::{log_softmax, softmax, softmax_last_dim};

use super::masks::counts;
use super::pass::Pass;

/// The shares of keys by scores, `(batch, heads, queries, keys)`.
pub fn shares(pass: &mut Pass, scores: &Tensor) -> Result<Tensor> {
    let how = pass.named(&[
        "softmax",
        "last dim",
        "last dim",
        "last dim",
        "spelled",
        "spelled twice",
        "without a maximum",
        "of logarithms",
        "in columns",
        "factors",
        "a score more",
        "two of them",
        "dropped",
        "read elsewhere",
        "sigmoid",
    ]);
    let last = |scores: &Tensor, in_double: bool| match in_double {
        true => softmax(scores, D::Minus1),
        false => softmax_last_dim(&scores.contiguous()?),
    };
    let in_double = pass.in_double;
    let apart = || scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?);
    let over_sum = |e: Tensor| e.broadcast_div(&e.sum_keepdim(D::Minus1)?);
    match how {
        "softmax" => softmax(scores, D::Minus1),
        "spelled" => over_sum(apart()?.exp()?),
        "spelled twice" => apart()?.exp()?.broadcast_div(&apart()?.exp()?.sum_keepdim(D::Minus1)?),
        "without a maximum" => over_sum(scores.exp()?),
        "of logarithms" => log_softmax(scores, D::Minus1)?.exp(),
        "in columns" => softmax(&scores.transpose(2, 3)?.contiguous()?, 2)?.transpose(2, 3)?.contiguous(),
        "factors" => {
            let counts = counts(pass, scores)?;
            over_sum(apart()?.exp()?.broadcast_mul(&counts)?)
        }
        "a score more" => {
            let (batch, heads, queries, keys) = scores.dims4()?;
            let more = pass.weight((1, heads, 1, 1), 1.)?.to_dtype(scores.dtype())?;
            let more = more.broadcast_as((batch, heads, queries, 1))?.contiguous()?;
            last(&Tensor::cat(&[scores, &more], 3)?, in_double)?.narrow(3, 0, keys)?.contiguous()
        }
        "two of them" => last(scores, in_double)? - (last(&(scores * 0.5)?, in_double)? * 0.3)?,
        "dropped" => {
            let counts = counts(pass, scores)?;
            last(scores, in_double)?.broadcast_mul(&counts)
        }
        "read elsewhere" => {
            let shares = last(scores, in_double)?;
            shares.broadcast_add(&(shares.mean_keepdim(2)? * 0.1)?)
        }
        "sigmoid" => candle_nn::ops::sigmoid(scores),
        _ => last(scores, in_double),
    }
}
