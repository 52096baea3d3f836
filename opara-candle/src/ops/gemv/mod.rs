//! Products of a weight with few rows, and what stands around them in a Transformer that writes token by token.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
#[cfg(feature = "cuda")]
pub(super) mod many;
#[cfg(feature = "cuda")]
pub(super) mod warpgroup;

use candle::{bail, DType, Device, Result, Tensor, D};

use super::activation::bias_act;
use super::differentiable::is_tracked;
use super::few_rows::{as_few, FEW};
use super::matmul::matmul_flops;
use super::{add, linear_act, mul, narrow, own_or, rms_norm, runs_own, Activation, RmsScale};
use crate::cpu::record::apply;

/// `residual + norm(x) * weightᵀ + bias`, for `x` of shape `(.., in)`, `weight` `(out, in)`, `bias` `(out)` and `residual`
/// `(.., out)`: the products of a decoder's layer.
///
/// On a GPU, up to sixteen rows of `x` (eight in f32) are one launch, which reads the weight once: in f16 and bf16 two rows or more on
/// tensor cores. Sums are in f32. On Hopper, two to 64 rows in f16 and bf16 are a norm, and a launch for all else; so are up to 256 where
/// the last dimension but one is 1, as it is for one token each of many texts. More rows are a norm, a product and a sum. So are fewer
/// where there is no kernel: for rows of a length that 16 bytes do not divide, or, before Hopper, of which eight do not fit into shared
/// memory.
///
/// On a GPU, from two rows to eight, a row's bits do not depend on how many rows there are, nor on the others: from two to 64, or of as
/// many texts to 256, in f16 and bf16 on Hopper, for rows of a length that 16 bytes divide ([`alike_rows`](super::alike_rows)). One row
/// alone may have another kernel, and so may each number of rows above; but in 16 bits 128, 256, 512 and 1,024 rows have the same, if one
/// of cuBLASLt's gives all of them the same bits.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::zeros((2, 1, 16), DType::F32, &Cpu)?; // (.., in)
/// let weight = Tensor::zeros((32, 16), DType::F32, &Cpu)?; // (out, in)
/// let scale = Tensor::ones(16, DType::F32, &Cpu)?;
/// assert_eq!(ops::norm_linear(&x, Some((&scale, 1e-6)), &weight, None, None)?.dims(), [2, 1, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn norm_linear(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    product(x, norm, weight, bias, Activation::None, residual)
}

/// `activation(norm(x) * weightᵀ + bias)`, as [`norm_linear`].
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Activation};
/// let x = Tensor::new(&[[3f32, -4.]], &Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0.], [0., 1.]], &Cpu)?;
/// let y = ops::norm_linear_act(&x, None, &weight, None, Activation::Relu)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[3., 0.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn norm_linear_act(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    product(x, norm, weight, bias, activation, None)
}

fn product(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (out, inner) = weight.dims2()?;
    let flops = matmul_flops(x.elem_count() / inner.max(1) * out, inner);
    let operands =
        Operands { eps: norm.map(|(_, eps)| eps), has_bias: bias.is_some(), has_residual: residual.is_some() };
    let run = move |t: &[&Tensor]| {
        let (x, norm, weight, bias, residual) = operands.of(t);
        let own = || gpu!(cuda::norm_linear(x, norm, weight, bias, activation, residual));
        let composed = || {
            let x = norm.map_or_else(|| Ok(x.clone()), |(scale, eps)| rms_norm(x, scale, eps))?;
            let y = product_of_rows(&x, weight, bias, activation)?;
            residual.map_or_else(|| Ok(y.clone()), |residual| add(residual, &y))
        };
        if is_tracked(t) {
            return composed();
        }
        own_or(x, own, composed)
    };
    let given = [Some(x), Some(weight), norm.map(|(scale, _)| scale), bias, residual];
    apply("norm_linear", &given.into_iter().flatten().collect::<Vec<_>>(), flops, run)
}

/// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`, for `x` of shape `(.., in)` and a `weight` of shape `(2 * out, in)` whose first
/// half is the gate: the gated unit of a decoder's feed-forward network (Shazeer, "GLU Variants Improve Transformer", 2020).
/// `bias`, of shape `(2 * out)`, is added to both. One launch on a GPU for few rows, as [`norm_linear`].
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Activation};
/// let x = Tensor::zeros((2, 1, 16), DType::F32, &Cpu)?; // (.., in)
/// let weight = Tensor::zeros((64, 16), DType::F32, &Cpu)?; // (2 * out, in)
/// assert_eq!(ops::norm_gated(&x, None, &weight, None, Activation::Silu)?.dims(), [2, 1, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn norm_gated(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let (rows, inner) = weight.dims2()?;
    if !rows.is_multiple_of(2) {
        bail!("a gated unit's weight has {rows} rows, which are not two halves")
    }
    let flops = matmul_flops(x.elem_count() / inner.max(1) * rows, inner);
    let operands = Operands { eps: norm.map(|(_, eps)| eps), has_bias: bias.is_some(), has_residual: false };
    let run = move |t: &[&Tensor]| {
        let (x, norm, weight, bias, _) = operands.of(t);
        let own = || gpu!(cuda::norm_gated(x, norm, weight, bias, activation));
        let composed = || {
            let x = norm.map_or_else(|| Ok(x.clone()), |(scale, eps)| rms_norm(x, scale, eps))?;
            gated(&product_of_rows(&x, weight, bias, Activation::None)?, activation)
        };
        if is_tracked(t) {
            return composed();
        }
        own_or(x, own, composed)
    };
    let given = [Some(x), Some(weight), norm.map(|(scale, _)| scale), bias];
    apply("norm_gated", &given.into_iter().flatten().collect::<Vec<_>>(), flops, run)
}

/// Rows up to which, from two on, a row's bits in [`norm_linear`] and [`norm_gated`] do not depend on how many there are, on a GPU, where
/// 16 bytes divide a row's length. More than 64 have to be of as many texts: the last dimension but one is 1.
///
/// # Errors
/// A failed driver call.
pub fn alike_rows(dtype: DType, device: &Device) -> Result<usize> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return Ok(many::alike_rows(dtype, device)?.unwrap_or(FEW));
    }
    let _ = (dtype, device);
    Ok(FEW)
}

/// `activation(x * weightᵀ + bias)` by a library. On a GPU a row's bits depend on the number of rows only where it is above eight and, in 16
/// bits, not that of 1, 2, 4 and so on up to 64 parts of prompts.
fn product_of_rows(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let own = || gpu!(super::matmul::parts::in_parts(x, weight));
    match if runs_own(x) && !is_tracked(&[x, weight]) { own()? } else { None } {
        Some(y) if bias.is_none() && activation == Activation::None => Ok(y),
        Some(y) => bias_act(&y, bias, activation),
        None => as_few(x, |x| linear_act(x, weight, bias, activation)),
    }
}

/// `activation(gate) * up` of `x`, whose last dimension is both, one after the other.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Activation};
/// let x = Tensor::new(&[[-1f32, 2., 3., 4.]], &Cpu)?;
/// assert_eq!(ops::gated(&x, Activation::Relu)?.to_vec2::<f32>()?, [[0., 8.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A last dimension that is not two halves.
pub fn gated(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let both = x.dim(D::Minus1)?;
    if !both.is_multiple_of(2) {
        bail!("{both} elements are not a gate and as many more")
    }
    let half = |at| narrow(x, x.rank() - 1, at * (both / 2), both / 2);
    let gate = candle::Module::forward(&activation, &half(0)?)?;
    mul(&gate, &half(1)?)
}

/// Which operands there are besides `x` and the weight.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// Of the norm, if there is one.
    pub eps: Option<f32>,
    pub has_bias: bool,
    pub has_residual: bool,
}

pub(super) type Given<'a> = (&'a Tensor, Option<RmsScale<'a>>, &'a Tensor, Option<&'a Tensor>, Option<&'a Tensor>);

impl Operands {
    /// x, norm, weight, bias and residual.
    pub fn of<'a>(&self, tensors: &[&'a Tensor]) -> Given<'a> {
        let (x, weight) = (tensors[0], tensors[1]);
        let mut rest = tensors[2..].iter().copied();
        let mut next = |is_there: bool| if is_there { rest.next() } else { None };
        let norm = self.eps.and_then(|eps| Some((next(true)?, eps)));
        (x, norm, weight, next(self.has_bias), next(self.has_residual))
    }
}
