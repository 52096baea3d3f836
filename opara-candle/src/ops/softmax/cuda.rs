//! Softmax of rows in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::bias::RowStarts;
use super::launch;
use crate::cuda::driver::kernels::{expect, ptx, wide};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{launched, rows_of, takes, with_elements, Call, Kernel};

/// Softmax of `x + bias`; the bias has the same shape, and comes with the starts of its rows. `None` if the kernel does
/// not support the operands: the caller then runs candle's operators, which also report errors.
pub(super) fn softmax(x: &Tensor, bias: Option<&(Tensor, RowStarts)>) -> Result<Option<Tensor>> {
    let takes = || takes(x, &[bias.map(|(bias, _)| bias)]);
    let Some(rows) = rows_of(x, &[]).filter(|_| takes()) else { return Ok(None) };
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    launched(Softmax { rows, bias: bias.cloned() }, &x.contiguous()?, x.shape()).map(Some)
}

/// The gradient before a softmax whose result is `y`. `None` if the kernel does not support the operands.
pub(super) fn gradient(y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(y, &[]).filter(|_| takes(y, &[Some(gradient)])) else { return Ok(None) };
    if y.elem_count() == 0 || gradient.shape() != y.shape() {
        return Ok(None);
    }
    launched(SoftmaxGradient { rows, gradient: gradient.contiguous()? }, &y.contiguous()?, y.shape()).map(Some)
}

struct SoftmaxGradient {
    rows: Rows,
    gradient: Tensor,
}

impl Kernel for SoftmaxGradient {
    const NAME: &'static str = "softmax_gradient";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let (rows, columns) = (self.rows.rows(), self.rows.columns());
        with_elements([Some(&self.gradient)], |[gradient]| {
            let Some(gradient) = &gradient else { bail!("a softmax without a gradient") };
            launch::SoftmaxGradient { rows, columns, y: &x, gradient, x: y.as_view_mut() }.launch(
                device,
                dtype.as_str(),
                ptx::SOFTMAX_GRADIENT,
                self.rows.by_warps_or_blocks(dtype),
            )
        })
    }
}

struct Softmax {
    rows: Rows,
    bias: Option<(Tensor, RowStarts)>,
}

impl Kernel for Softmax {
    const NAME: &'static str = "softmax";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { rows: of, bias } = self;
        let (rows, columns, config) = (of.rows(), of.columns(), of.by_warps_or_blocks(dtype));
        let once = config.block_dim.0 as usize * wide(dtype);
        let variant = format!("{}_{}", if columns <= once { "short" } else { "long" }, dtype.as_str());
        let starts = bias.as_ref().map(|(_, starts)| *starts);
        let RowStarts { dims, strides } = starts.unwrap_or(RowStarts { dims: [1; 3], strides: [0; 3] });
        if starts.is_some() {
            expect("the rows of the bias", dims.iter().product(), rows)?;
        }
        let of_bias = starts.map_or(0, |starts| starts.needed(columns).unwrap_or(usize::MAX));
        with_elements([bias.as_ref().map(|(bias, _)| bias)], |[elements]| {
            let (dims, bias, y) = ([dims[1], dims[2]], elements.as_ref(), y.as_view_mut());
            launch::Softmax { of_bias, rows, columns, dims, strides, x: &x, bias, y }.launch(
                device,
                &variant,
                ptx::SOFTMAX,
                config,
            )
        })
    }
}
