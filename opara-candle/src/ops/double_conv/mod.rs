//! Convolution in f64 on a GPU.

pub(super) mod launch;
mod sizes;

use candle::cuda_backend::CudaDType;
use candle::{DType, Result, Tensor};
use cudarc::driver::DeviceRepr;

use self::sizes::Sizes;
use crate::cuda::driver::kernels::{expect_f64, ptx};
use crate::cuda::operator::{launched, with_elements, Call, Kernel};
use crate::ops::Padding;

/// The convolution of `x`, `(batch, in, h, w)`, with `weight`, `(out, in / groups, kh, kw)`: libraries have none of f64 that is fast.
/// Strides and dilations are those of rows and columns. `None` for other types, and if no kernel supports it.
///
/// # Errors
/// Tensors of another rank, and a failed launch.
pub(crate) fn double_conv(
    x: &Tensor,
    weight: &Tensor,
    padding: Padding,
    stride: (usize, usize),
    dilation: (usize, usize),
) -> Result<Option<Tensor>> {
    if ![x, weight].iter().all(|operand| operand.dtype() == DType::F64 && operand.device().is_cuda()) {
        return Ok(None);
    }
    let ((batch, channels, h, w), (out, inner, kh, kw)) = (x.dims4()?, weight.dims4()?);
    let groups = channels / inner.max(1);
    let Padding { top, bottom, left, right } = padding;
    let windows = |padded: [usize; 3], kernel: usize, stride: usize, dilation: usize| {
        let padded = padded.into_iter().try_fold(0, usize::checked_add).filter(|&n| n <= i32::MAX as usize)?;
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        Some(padded.checked_sub(reach)?.checked_div(stride)? + 1)
    };
    let rows = windows([top, h, bottom], kh, stride.0, dilation.0);
    let columns = windows([left, w, right], kw, stride.1, dilation.1);
    let Some(to) = rows.zip(columns) else { return Ok(None) };
    let (from, kernel, padding, out) = ((h, w), (kh, kw), (top, left), out / groups.max(1));
    let of = Sizes { batch, groups, out, inner, from, to, kernel, stride, dilation, padding };
    if !launch::is_known(x.device().as_cuda_device()?, &of)? {
        return Ok(None);
    }
    let shape = (batch, groups * out, to.0, to.1);
    let weight = weight.permute((2, 3, 0, 1))?.contiguous()?;
    launched(DoubleConv { of, weight }, &x.contiguous()?, shape).map(Some)
}

struct DoubleConv {
    of: Sizes,
    /// Window by window.
    weight: Tensor,
}

impl Kernel for DoubleConv {
    const NAME: &'static str = "double_conv";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        with_elements([Some(&self.weight)], |[weight]| {
            let Some(weight) = weight else { candle::bail!("a convolution without a weight") };
            expect_f64::<T>("the convolution")?;
            let Sizes { batch, groups, out, inner, from, to, kernel, stride, dilation, padding } = self.of;
            let numel = batch * groups * out * to.0 * to.1;
            if numel == 0 {
                return Ok(());
            }
            let [from, to, kernel] = [from, to, kernel].map(<[usize; 2]>::from);
            let [stride, dilation, padding] = [stride, dilation, padding].map(<[usize; 2]>::from);
            let (x, weight, y) = (&x, &weight, y.as_view_mut());
            launch::DoubleConv {
                batch,
                numel,
                groups,
                out,
                inner,
                from,
                to,
                kernel,
                stride,
                dilation,
                padding,
                x,
                weight,
                y,
            }
            .launch(device, "f64", ptx::DOUBLE_CONV, launch::config(&self.of))
        })
    }
}
