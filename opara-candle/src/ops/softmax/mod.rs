//! Softmax, with an optional bias added before.

mod bias;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, Result, Tensor, D};

pub(in crate::ops) use self::bias::{bias_of_rows, RowStarts};
use super::column_sums::{in_sums, summed_like};
use super::differentiable::differentiable;
use super::{own_on, own_or};
use crate::cpu::record::apply;

/// Softmax over the last dimension, in one kernel.
///
/// # Errors
/// A dtype without a softmax.
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    add_softmax(x, None)
}

/// Softmax of `x + bias` over the last dimension, in one kernel. The bias, for example an attention mask, broadcasts to
/// `x`. The sum is not rounded before the softmax.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let scores = Tensor::zeros((2, 4, 8, 8), DType::F32, &Cpu)?; // (batch, heads, queries, keys)
/// let mask = Tensor::zeros((2, 1, 1, 8), DType::F32, &Cpu)?;
/// let weights = ops::add_softmax(&scores, Some(&mask))?;
/// assert_eq!(weights.dims(), [2, 4, 8, 8]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, or a dtype without a softmax.
pub fn add_softmax(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let flops = 8 * x.elem_count() as u64;
    match bias {
        Some(bias) => apply("softmax", &[x, bias], flops, run),
        None => apply("softmax", &[x], flops, run),
    }
}

fn run(t: &[&Tensor]) -> Result<Tensor> {
    let forward = |t: &[&Tensor]| Ok((softmax(t[0], t.get(1).copied())?, Vec::new()));
    differentiable("softmax", t, forward, |passed| {
        let of_x = softmax_backward(passed.result, passed.gradient)?;
        let of_bias = match passed.operands.get(1).filter(|_| passed.needs(1)) {
            Some(bias) => Some(summed_like(&of_x, bias)?),
            None => None,
        };
        Ok(vec![Some(of_x), of_bias])
    })
}

/// The gradient of the operand of [`softmax_last_dim`] by its result `y` and the gradient of that.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn softmax_backward(y: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let composed = || {
        let [p, gradient] = [in_sums(y)?, in_sums(gradient)?];
        let sum = (&p * &gradient)?.sum_keepdim(D::Minus1)?;
        (p * gradient.broadcast_sub(&sum)?)?.to_dtype(y.dtype())
    };
    own_or(y, || gpu!(cuda::gradient(y, gradient)), composed)
}

fn softmax(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.rank() == 0 {
        bail!("softmax needs at least one dimension; this tensor is a scalar");
    }
    let composed = || {
        let x = bias.map_or_else(|| x.contiguous(), |bias| x.broadcast_add(bias))?;
        // candle's operator divides by the length of a row.
        match x.elem_count() {
            0 => Ok(x),
            _ => candle_nn::ops::softmax_last_dim(&x),
        }
    };
    let bias = bias.map(|bias| bias_of_rows(bias, x.shape())).transpose()?;
    if matches!(bias, Some(None)) {
        return composed();
    }
    let bias = bias.flatten();
    own_on(x, || cpu::softmax(x, bias.as_ref()), || gpu!(cuda::softmax(x, bias.as_ref())))?.map_or_else(composed, Ok)
}
