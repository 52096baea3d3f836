//! Layer norm and RMS norm over the last dimension.

mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod gradient_cuda;
#[cfg(feature = "cuda")]
pub(super) mod gradient_launch;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, DType, Result, Tensor, D};

#[cfg(any(feature = "cuda", test))]
pub(crate) use self::backward::LayerNormGradients;
pub(crate) use self::backward::{layer_norm_backward, rms_norm_backward};
use super::column_sums::column_sums;
use super::differentiable::{differentiable, Passed};
use super::{add, own_on, own_or};
use crate::cpu::record::apply;

/// A root-mean-square norm of an operand: a scale of the length of its rows, and what is added to the mean square.
pub type RmsScale<'a> = (&'a Tensor, f32);

/// Layer norm over the last dimension, with a scale and a shift of that length.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::randn(0f32, 1., (2, 10, 64), &Cpu)?;
/// let (scale, shift) = (Tensor::ones(64, DType::F32, &Cpu)?, Tensor::zeros(64, DType::F32, &Cpu)?);
/// assert_eq!(ops::layer_norm(&x, &scale, &shift, 1e-5)?.dims(), [2, 10, 64]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree.
pub fn layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Tensor> {
    apply("layer_norm", &[x, scale, shift], 8 * x.elem_count() as u64, move |t| {
        let forward = |t: &[&Tensor]| {
            let own = || gpu!(cuda::layer_norm(t[0], None::<&Tensor>, None::<&Tensor>, t[1], t[2], eps));
            let on_cpu = || cpu::layer_norm(t[0], None, None, t[1], t[2], eps);
            let composed = || plain_layer_norm(t[0], t[1], t[2], eps);
            Ok((own_on(t[0], on_cpu, own)?.map_or_else(composed, Ok)?, Vec::new()))
        };
        differentiable("layer_norm", t, forward, move |passed| {
            let [x, scale, _] = passed.operands else { bail!("a layer norm without scale or shift") };
            let of = layer_norm_backward(x, scale, passed.gradient, None, eps)?;
            Ok(vec![Some(of.x), Some(of.scale), Some(of.shift)])
        })
    })
}

/// Layer norm of `x + bias + residual` over the last dimension, which is the length of `bias`, `scale` and `shift`: the
/// end of each half of a Transformer layer. On a GPU the sum is not rounded before it is normalised.
///
/// # Errors
/// Shapes that do not agree.
pub fn add_layer_norm(
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    eps: f32,
) -> Result<Tensor> {
    let forward = move |t: &[&Tensor]| {
        let (x, residual, scale, shift, bias) = (t[0], t[1], t[2], t[3], t.get(4).copied());
        let composed = || plain_layer_norm(&sum_of(x, bias, residual)?, scale, shift, eps);
        let on_cpu = || cpu::layer_norm(x, bias, Some(residual), scale, shift, eps);
        let own = || gpu!(cuda::layer_norm(x, bias, Some(residual), scale, shift, eps));
        Ok((own_on(x, on_cpu, own)?.map_or_else(composed, Ok)?, Vec::new()))
    };
    let backward = move |passed: &Passed| {
        let [x, residual, scale, _, bias @ ..] = passed.operands else { bail!("a layer norm without scale or shift") };
        let sum = sum_of(x, bias.first(), residual)?;
        let of = layer_norm_backward(&sum, scale, passed.gradient, None, eps)?;
        let of_bias = if passed.needs(4) { Some(column_sums(&of.x)?) } else { None };
        Ok(vec![Some(of.x.clone()), Some(of.x), Some(of.scale), Some(of.shift), of_bias])
    };
    let run = move |t: &[&Tensor]| differentiable("add_layer_norm", t, forward, backward);
    let flops = 10 * x.elem_count() as u64;
    match bias {
        Some(bias) => apply("add_layer_norm", &[x, residual, scale, shift, bias], flops, run),
        None => apply("add_layer_norm", &[x, residual, scale, shift], flops, run),
    }
}

/// RMS norm over the last dimension, with a scale of that length.
///
/// # Errors
/// Shapes that do not agree.
pub fn rms_norm(x: &Tensor, scale: &Tensor, eps: f32) -> Result<Tensor> {
    apply("rms_norm", &[x, scale], 5 * x.elem_count() as u64, move |t| {
        let forward = |t: &[&Tensor]| {
            let own = || gpu!(cuda::rms_norm(t[0], t[1], eps));
            let composed = || match is_empty("an RMS norm", t[0], &[t[1]])? {
                true => Ok(t[0].clone()),
                false if t[0].dtype() == DType::F64 => norm_of_f64(t[0], t[1], eps),
                false => candle_nn::ops::rms_norm(&t[0].contiguous()?, &t[1].contiguous()?, eps),
            };
            Ok((own_or(t[0], own, composed)?, Vec::new()))
        };
        differentiable("rms_norm", t, forward, move |passed| {
            let [x, scale] = passed.operands else { bail!("an RMS norm without scale") };
            let (x, scale) = rms_norm_backward(x, scale, passed.gradient, None, eps)?;
            Ok(vec![Some(x), Some(scale)])
        })
    })
}

/// `x + bias + residual`.
fn sum_of(x: &Tensor, bias: Option<&Tensor>, residual: &Tensor) -> Result<Tensor> {
    bias.map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))? + residual
}

/// The same by candle's operator, which divides by the length of a row.
fn plain_layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Tensor> {
    match is_empty("a layer norm", x, &[scale, shift])? {
        true => Ok(x.clone()),
        // candle has no norms of f64 on a CPU.
        false if x.dtype() == DType::F64 => {
            let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
            norm_of_f64(&x, scale, eps)?.broadcast_add(shift)
        }
        false => candle_nn::ops::layer_norm(&x.contiguous()?, &scale.contiguous()?, &shift.contiguous()?, eps),
    }
}

/// The RMS norm by elementary operators.
fn norm_of_f64(x: &Tensor, scale: &Tensor, eps: f32) -> Result<Tensor> {
    let squares = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?;
    x.broadcast_div(&squares.sqrt()?)?.broadcast_mul(scale)
}

/// Are there no elements to normalise?
///
/// # Errors
/// Vectors of another length than a row.
fn is_empty(what: &str, x: &Tensor, vectors: &[&Tensor]) -> Result<bool> {
    let Some(&columns) = x.dims().last() else { bail!("{what} needs at least one dimension: this tensor is a scalar") };
    if let Some(vector) = vectors.iter().find(|vector| vector.dims() != [columns]) {
        bail!("{what} of rows of {columns} elements with a vector of {:?}", vector.dims())
    }
    Ok(x.elem_count() == 0)
}

/// `x + residual`, and the RMS norm of that sum over the last dimension, which is the length of `scale`: the step
/// between two blocks of a pre-norm Transformer. One launch on a GPU.
///
/// # Errors
/// Shapes that do not agree.
pub fn add_rms_norm(x: &Tensor, residual: &Tensor, scale: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    // Its two results would be one operator with two gradients.
    let is_tracked = [x, residual, scale].iter().any(|operand| operand.track_op());
    let own = || gpu!(cuda::add_rms_norm(x, residual, scale, eps));
    if let Some(both) = if is_tracked { None } else { own_on::<Tensor>(x, || Ok(None), own)? } {
        return Ok((both.get(0)?, both.get(1)?));
    }
    let sum = add(x, residual)?;
    let normed = rms_norm(&sum, scale, eps)?;
    Ok((sum, normed))
}
