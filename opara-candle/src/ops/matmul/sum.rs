//! Products that have a factor, and begin with a summand.

use candle::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::sum_cuda;

/// `factor * x * weight + bias + to`, of `x`, `(rows, inner)`, and `to`, `(rows, columns)`. The weight is `(columns, inner)`, if `true` stands
/// beside it, else `(inner, columns)`. On a GPU one launch computes it where that is faster, and rounds once.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn product_sum(
    (factor, x): (f32, &Tensor),
    (weight, is_by_rows): (&Tensor, bool),
    bias: Option<&Tensor>,
    to: &Tensor,
) -> Result<Tensor> {
    let apart = || {
        let product = if is_by_rows { x.matmul(&weight.t()?)? } else { x.matmul(weight)? };
        let product = if factor == 1. { product } else { (product * f64::from(factor))? };
        let product = bias.map_or(Ok(product.clone()), |bias| product.broadcast_add(bias))?;
        product + to
    };
    match x.device() {
        Device::Cuda(_) => gpu!(sum_cuda::product_sum((factor, x), (weight, is_by_rows), bias, Some(to), apart))?
            .map_or_else(apart, Ok),
        _ => apart(),
    }
}

/// `factor * x * y`, of `x`, `(rows, inner)`, which may be the transpose of a contiguous matrix, and `y`, `(inner, columns)`. On a GPU one
/// launch computes it where that is faster, and rounds once.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn scaled_product(factor: f32, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    // candle takes transposed matrices, but not all views.
    let apart = || x.matmul(y).or_else(|_| x.contiguous()?.matmul(y))? * f64::from(factor);
    let nothing: Option<&Tensor> = None;
    match x.device() {
        Device::Cuda(_) => {
            gpu!(sum_cuda::product_sum((factor, x), (y, false), nothing, nothing, apart))?.map_or_else(apart, Ok)
        }
        _ => apart(),
    }
}
