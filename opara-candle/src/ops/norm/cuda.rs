//! Layer norm and RMS norm in one launch.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, variant};
use crate::cuda::driver::kernels::ptx;
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{launched, rows_of, takes, with_elements, Call, Kernel};

/// Layer norm of `x + bias + residual`. `None` if the kernel does not support the operands: the caller then runs
/// candle's operators, which also report errors.
pub(super) fn layer_norm(
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    scale: &Tensor,
    shift: &Tensor,
    eps: f32,
) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(x, &[bias, Some(scale), Some(shift)]) else { return Ok(None) };
    if residual.is_some_and(|residual| residual.dims() != x.dims()) || !takes(x, &[residual]) {
        return Ok(None);
    }
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    let contiguous = |tensor: Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
    let (bias, residual) = (contiguous(bias)?, contiguous(residual)?);
    let kernel = LayerNorm { rows, eps, bias, residual, scale: scale.contiguous()?, shift: shift.contiguous()? };
    launched(kernel, &x.contiguous()?, x.shape()).map(Some)
}

/// RMS norm. `None` if the kernel does not support the operands: the caller then runs candle's operator, which also
/// reports errors.
pub(super) fn rms_norm(x: &Tensor, scale: &Tensor, eps: f32) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(x, &[Some(scale)]) else { return Ok(None) };
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    launched(RmsNorm { rows, eps, scale: scale.contiguous()? }, &x.contiguous()?, x.shape()).map(Some)
}

/// `x + residual`, and its RMS norm. `None` if the kernel does not support the operands: the caller then runs candle's
/// operators, which also report errors.
pub(super) fn add_rms_norm(x: &Tensor, residual: &Tensor, scale: &Tensor, eps: f32) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(x, &[Some(scale)]) else { return Ok(None) };
    if residual.dims() != x.dims() || !takes(x, &[Some(residual)]) || x.elem_count() == 0 {
        return Ok(None);
    }
    let kernel = AddRmsNorm { rows, eps, residual: residual.contiguous()?, scale: scale.contiguous()? };
    launched(kernel, &x.contiguous()?, [&[2], x.dims()].concat()).map(Some)
}

struct LayerNorm {
    rows: Rows,
    eps: f32,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    scale: Tensor,
    shift: Tensor,
}

impl Kernel for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { rows, eps, bias, residual, scale, shift } = self;
        let operands = [bias.as_ref(), residual.as_ref(), Some(scale), Some(shift)];
        with_elements(operands, |[bias, residual, scale, shift]| {
            let (Some(scale), Some(shift)) = (scale, shift) else {
                candle::bail!("a layer norm without scale or shift")
            };
            let (bias, residual) = (bias.as_ref(), residual.as_ref());
            let variant = variant(*rows, device, dtype, &[Some(&x), bias, residual, Some(&scale), Some(&shift)]);
            let (columns, config, y) = (rows.columns(), rows.by_blocks(dtype), y.as_view_mut());
            let (rows, eps, x, scale, shift) = (rows.rows(), *eps, &x, &scale, &shift);
            launch::LayerNorm { rows, columns, eps, x, bias, residual, scale, shift, y }.launch(
                device,
                &variant,
                ptx::NORM,
                config,
            )
        })
    }
}

struct RmsNorm {
    rows: Rows,
    eps: f32,
    scale: Tensor,
}

impl Kernel for RmsNorm {
    const NAME: &'static str = "rms_norm";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        with_elements([Some(&self.scale)], |[scale]| {
            let Some(scale) = scale else { candle::bail!("an RMS norm without scale") };
            let (of, eps, x, scale, y) = (self.rows, self.eps, &x, &scale, y.as_view_mut());
            let variant = variant(of, device, dtype, &[Some(x), Some(scale)]);
            launch::RmsNorm { rows: of.rows(), columns: of.columns(), eps, x, scale, y }.launch(
                device,
                &variant,
                ptx::NORM,
                of.by_blocks(dtype),
            )
        })
    }
}

struct AddRmsNorm {
    rows: Rows,
    eps: f32,
    residual: Tensor,
    scale: Tensor,
}

impl Kernel for AddRmsNorm {
    const NAME: &'static str = "add_rms_norm";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        with_elements([Some(&self.residual), Some(&self.scale)], |[residual, scale]| {
            let (Some(residual), Some(scale)) = (residual, scale) else {
                candle::bail!("an RMS norm without residual or scale")
            };
            let (of, eps, x, residual, scale, y) = (self.rows, self.eps, &x, &residual, &scale, y.as_view_mut());
            let variant = variant(of, device, dtype, &[Some(x), Some(residual), Some(scale)]);
            launch::AddRmsNorm { rows: of.rows(), columns: of.columns(), eps, x, residual, scale, y }.launch(
                device,
                &variant,
                ptx::NORM,
                of.by_blocks(dtype),
            )
        })
    }
}
