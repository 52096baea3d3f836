//! Products of few rows by a library, whose kernels it chooses by how many rows there are.

use candle::{Result, Tensor, D};

/// Rows up to which, from two on, a row's bits do not depend on how many there are.
pub(super) const FEW: usize = 8;

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
