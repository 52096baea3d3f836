//! Splitting the hidden dimension into attention heads, and merging it again.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, Result, Tensor};

use super::column_sums::column_sums;
use super::differentiable::{differentiable, is_tracked};
use super::own_or;
use crate::cpu::record::apply;

/// `(x + bias) * scale`, `(batch, seq, heads * dim)`, as a contiguous `(batch, heads, seq, dim)`: the step between the
/// projection that computes queries, keys or values and [`matmul`](super::matmul).
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::zeros((2, 10, 64), DType::F32, &Cpu)?; // (batch, seq, heads * dim)
/// let heads = ops::split_heads(&x, None, 4, 1.)?;
/// assert_eq!(heads.dims(), [2, 4, 10, 16]); // (batch, heads, seq, dim)
/// assert_eq!(ops::merge_heads(&heads)?.dims(), [2, 10, 64]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, or heads that do not divide the last dimension.
pub fn split_heads(x: &Tensor, bias: Option<&Tensor>, heads: usize, scale: f64) -> Result<Tensor> {
    let (_, _, hidden) = x.dims3()?;
    if heads == 0 || hidden % heads != 0 {
        bail!("{heads} heads do not divide {hidden} elements")
    }
    let forward = move |t: &[&Tensor]| {
        let (x, bias) = (t[0], t.get(1).copied());
        let composed = || {
            let (batch, seq, hidden) = x.dims3()?;
            let x = bias.map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))?;
            let x = x.reshape((batch, seq, heads, hidden / heads))?.transpose(1, 2)?;
            // Scaling also makes the tensor contiguous.
            if scale == 1. {
                x.contiguous()
            } else {
                x.affine(scale, 0.)
            }
        };
        Ok((own_or(x, || gpu!(cuda::split_heads(x, bias, heads, scale)), composed)?, Vec::new()))
    };
    let run = move |t: &[&Tensor]| {
        differentiable("split_heads", t, forward, move |passed| {
            let merged = merge_heads(passed.gradient)?;
            let of_x = if scale == 1. { merged } else { merged.affine(scale, 0.)? };
            let of_bias = if passed.needs(1) { Some(column_sums(&of_x)?) } else { None };
            Ok(vec![Some(of_x), of_bias])
        })
    };
    match bias {
        Some(bias) => apply("split_heads", &[x, bias], 0, run),
        None => apply("split_heads", &[x], 0, run),
    }
}

/// `(batch, heads, seq, dim)` as `(batch, seq, heads * dim)`: the inverse of [`split_heads`].
///
/// # Errors
/// A tensor of another rank.
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    apply("merge_heads", &[x], 0, |t| {
        let (batch, heads, seq, dim) = t[0].dims4()?;
        let merged = t[0].transpose(1, 2)?;
        if merged.is_contiguous() || is_tracked(t) && !super::runs_own(t[0]) {
            return merged.reshape((batch, seq, heads * dim));
        }
        let forward = |t: &[&Tensor]| {
            // Merging is splitting with heads and tokens exchanged, so the same kernel does it.
            let own = || gpu!(cuda::split_heads(&t[0].reshape((batch, heads, seq * dim))?, None::<&Tensor>, seq, 1.));
            let merged = own_or(t[0], own, || t[0].transpose(1, 2))?;
            Ok((merged.reshape((batch, seq, heads * dim))?, Vec::new()))
        };
        differentiable("merge_heads", t, forward, move |passed| {
            Ok(vec![Some(split_heads(passed.gradient, None, heads, 1.)?)])
        })
    })
}
