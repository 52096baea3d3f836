//! Gradients of attention.

use candle::{Result, Tensor};

use super::sharing::repeated;
use crate::ops::column_sums::{in_sums, summed_like};
use crate::ops::softmax::softmax_backward;
use crate::ops::{add_softmax, affine, matmul};

/// The gradients of the operands of attention.
pub(crate) struct AttentionGradients {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// If it is asked for.
    pub bias: Option<Tensor>,
}

/// The gradients of the operands of [`attention`](super::attention) by that of its result. The weights are computed again: two matrices of
/// queries by keys are stored for each head, in the operands' type.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn attention_backward(
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Tensor>,
    scale: f64,
    gradient: &Tensor,
    needs_bias: bool,
) -> Result<AttentionGradients> {
    let heads = q.dim(1)?;
    let scaled = |x: &Tensor| if scale == 1. { Ok(x.clone()) } else { affine(x, scale, 0.) };
    let (of_queries, keys, values) = (scaled(&q.contiguous()?)?, repeated(k, heads)?, repeated(v, heads)?);
    let gradient = gradient.contiguous()?;
    let weights = add_softmax(&matmul(&of_queries, &keys.t()?)?, bias)?;
    let of_values = matmul(&weights.t()?, &gradient)?;
    let of_scores = softmax_backward(&weights, &matmul(&gradient, &values.t()?)?)?;
    let of_keys = matmul(&of_scores.t()?, &of_queries)?;
    let bias = match bias.filter(|_| needs_bias) {
        Some(bias) => Some(summed_like(&of_scores, bias)?),
        None => None,
    };
    Ok(AttentionGradients {
        q: scaled(&matmul(&of_scores, &keys)?)?,
        k: shared(&of_keys, k)?,
        v: shared(&of_values, v)?,
        bias,
    })
}

/// Sums the gradients of a head's copies.
fn shared(gradient: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (batch, heads, keys, dim) = x.dims4()?;
    if gradient.dim(1)? == heads {
        return Ok(gradient.clone());
    }
    let copies = gradient.reshape((batch, heads, (), keys, dim))?;
    in_sums(&copies)?.sum(2)?.to_dtype(x.dtype())
}
