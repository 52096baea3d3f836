//! Views: the same elements in another shape or order.

use candle::{Result, Shape, Tensor};

use crate::cpu::record::apply;

/// The same elements in another shape.
///
/// # Errors
/// Another number of elements.
pub fn reshape(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    apply("reshape", &[x], 0, move |t| t[0].reshape(&shape))
}

/// `len` indices along dimension `dim` from `start` on. A view.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::new(&[[0f32, 1., 2.], [3., 4., 5.]], &Cpu)?;
/// assert_eq!(ops::narrow(&x, 1, 1, 2)?.to_vec2::<f32>()?, [[1., 2.], [4., 5.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A range outside the dimension.
pub fn narrow(x: &Tensor, dim: usize, start: usize, len: usize) -> Result<Tensor> {
    apply("narrow", &[x], 0, move |t| t[0].narrow(dim, start, len))
}

/// Repeats the elements along dimensions of length one, and along new dimensions on the left. A view.
///
/// # Errors
/// A shape that `x` does not broadcast to.
pub fn broadcast_as(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    apply("broadcast_as", &[x], 0, move |t| t[0].broadcast_as(&shape))
}

/// Exchanges two dimensions. A view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn transpose(x: &Tensor, dim1: usize, dim2: usize) -> Result<Tensor> {
    apply("transpose", &[x], 0, move |t| t[0].transpose(dim1, dim2))
}

/// Reorders the dimensions. A view.
///
/// # Errors
/// An order that is no permutation.
pub fn permute(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    let order = order.to_vec();
    apply("permute", &[x], 0, move |t| t[0].permute(order.as_slice()))
}

/// Inserts a dimension of length one before `dim`. A view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn unsqueeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("unsqueeze", &[x], 0, move |t| t[0].unsqueeze(dim))
}

/// Removes dimension `dim`, which has length one. A view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn squeeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("squeeze", &[x], 0, move |t| t[0].squeeze(dim))
}

/// A contiguous tensor of the same values: a copy, unless `x` is contiguous.
///
/// # Errors
/// The copy failed.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    apply("contiguous", &[x], 0, |t| t[0].contiguous())
}
