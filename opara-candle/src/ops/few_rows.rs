//! Products by a library, which chooses its kernels by how many rows there are: of few rows, and of parts of prompts, with bits that do not
//! depend on that.

use candle::{DType, Device, Result, Tensor, D};

use super::activation::bias_act;
use super::{linear_act, Activation};

/// Rows up to which, from two on, a row's bits do not depend on how many there are.
pub(super) const FEW: usize = 8;

/// Rows up to which, from two on, a row's bits in [`norm_linear`](super::norm_linear) and [`norm_gated`](super::norm_gated) do not depend on how
/// many there are, on a GPU, where 16 bytes divide a row's length.
///
/// # Errors
/// A failed driver call.
pub fn alike_rows(dtype: DType, device: &Device) -> Result<usize> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return Ok(super::gemv::warpgroup::alike_rows(dtype, device)?.unwrap_or(FEW));
    }
    let _ = (dtype, device);
    Ok(FEW)
}

/// `activation(x * weightᵀ + bias)`. On a GPU a row's bits depend on the number of rows only where it is above eight and, in 16 bits, not
/// that of 1, 2, 4 or 8 parts of prompts.
pub(super) fn product_of_rows(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    match gpu!(super::matmul::parts::in_parts(x, weight))? {
        Some(y) if bias.is_none() && activation == Activation::None => Ok(y),
        Some(y) => bias_act(&y, bias, activation),
        None => as_few(x, |x| linear_act(x, weight, bias, activation)),
    }
}

/// `product` of the rows of `x`, `(.., in)`. On a GPU, from two to [`FEW`] rows become that many, with zeros behind the last one, so that
/// the same kernel computes them.
pub(super) fn as_few(x: &Tensor, product: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (inner, dims) = (x.dim(D::Minus1)?, x.dims());
    let rows = x.elem_count() / inner.max(1);
    if !x.device().is_cuda() || !(2..=FEW).contains(&rows) {
        return product(x);
    }
    let all = product(&x.reshape((rows, inner))?.pad_with_zeros(0, 0, FEW - rows)?)?;
    let shape = [&dims[..dims.len() - 1], &[all.dim(1)?]].concat();
    all.narrow(0, 0, rows)?.reshape(shape)
}
