//! Gradients of attention.

use candle::{Result, Tensor};

#[cfg(feature = "cuda")]
use super::gradient_cuda;
#[cfg(any(feature = "cuda", test))]
use super::scores::Scores;
use super::sharing::repeated;
use crate::ops::column_sums::{in_sums, summed_like};
use crate::ops::softmax::softmax_backward;
use crate::ops::{add_softmax, affine, matmul, own_on};

/// The gradients of the operands of attention.
pub(crate) struct AttentionGradients {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// If it is asked for.
    pub bias: Option<Tensor>,
}

/// The gradients of the operands of [`attention`](super::attention) by its result and the gradient of that. The weights are computed again. In
/// 16 bits on warpgroups they are not stored; else two matrices of queries by keys are, for each head, in the operands' type.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn attention_backward(
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Tensor>,
    scale: f64,
    [y, gradient]: [&Tensor; 2],
    needs_bias: bool,
) -> Result<AttentionGradients> {
    let own = || match needs_bias {
        true => Ok(None),
        false => gpu!(gradient_cuda::gradients([q, k, v], bias, scale, [y, gradient])),
    };
    if let Some([q, k, v]) = own_on::<[Tensor; 3]>(q, || Ok(None), own)? {
        return Ok(AttentionGradients { q, k, v, bias: None });
    }
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

/// The same of any [`Scores`], without stored weights, if there are kernels for that. The bias gets no gradient.
///
/// # Errors
/// A failed launch.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn attention_backward_of_scores(
    operands: [&Tensor; 3],
    bias: Option<&Tensor>,
    of: &Scores,
    results: [&Tensor; 2],
) -> Result<Option<AttentionGradients>> {
    let own = || gpu!(gradient_cuda::gradients_of_scores(operands, bias, of, results));
    let own = own_on::<[Tensor; 3]>(operands[0], || Ok(None), own)?;
    Ok(own.map(|[q, k, v]| AttentionGradients { q, k, v, bias: None }))
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
