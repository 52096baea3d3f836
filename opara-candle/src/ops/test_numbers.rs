//! Numbers for tests of kernels.

use candle::{DType, Device, Result, Shape, Tensor};

/// Numbers from -1 to 1 on the CPU, which look drawn at random and are the same in every run.
pub(super) fn numbers(seed: usize, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let of = |i: usize| ((i * 2_654_435_761 + seed * 97) % 2_000_003) as f64 / 1e6 - 1.;
    Tensor::from_iter((0..shape.elem_count()).map(of), &Device::Cpu)?.reshape(shape)?.to_dtype(dtype)
}
