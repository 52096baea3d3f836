//! Softmax, with an optional bias added before.

mod bias;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, Result, Tensor};

pub(in crate::ops) use self::bias::{bias_of_rows, RowStarts};
use super::own_on;
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
        Some(bias) => apply("softmax", &[x, bias], flops, |t| softmax(t[0], Some(t[1]))),
        None => apply("softmax", &[x], flops, |t| softmax(t[0], None)),
    }
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
