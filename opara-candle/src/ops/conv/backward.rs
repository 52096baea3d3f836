//! Gradients of convolutions by cuDNN, with algorithms that give the same bits on every run.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::cuda::is_depthwise;
use super::depthwise_backward::Depthwise;
use crate::cuda::driver::convolution::Convolution;
use crate::cuda::driver::cudnn::{run_backward, Gradient};
use crate::cuda::driver::kernels::written;
use crate::cuda::operator::format::Format;
use crate::cuda::operator::{takes, tensor_of, with_elements};
use crate::ops::{ConvConfig, ProductPrecision};

/// The gradients of image and weight, as far as they are `needed`, by that of the result before anything is added, in the memory layout of
/// the dtype's convolutions. `None` if cuDNN does not support the convolution.
pub(crate) fn gradients(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    config: &ConvConfig,
    needed: [bool; 2],
) -> Result<Option<[Option<Tensor>; 2]>> {
    if !takes(x, &[Some(weight), Some(gradient)]) || !config.padding.is_symmetric() || x.elem_count() == 0 {
        return Ok(None);
    }
    if is_depthwise(weight, config.groups) && weight.dim(0)? == config.groups {
        if let Some(found) = of_channels([x, weight, gradient], config, needed)? {
            return Ok(Some(found));
        }
    }
    let own = Format::of(x.dtype());
    for format in if own == Format::Nchw { vec![own] } else { vec![own, Format::Nchw] } {
        let found = by_format(format, [x, weight, gradient], config, needed)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The same of a convolution of each channel by itself, by this library's kernels.
fn of_channels(
    [x, weight, gradient]: [&Tensor; 3],
    config: &ConvConfig,
    needed: [bool; 2],
) -> Result<Option<[Option<Tensor>; 2]>> {
    let format = Format::Nhwc;
    let (x, gradient) = (&format.arrange(x)?, &format.arrange(gradient)?);
    let weight = &weight.squeeze(1)?.permute((1, 2, 0))?.contiguous()?;
    let found = Depthwise { x, weight, gradient, config }.gradients(needed)?;
    let Some([of_x, of_weight]) = found else { return Ok(None) };
    Ok(Some([of_x.map(|of| format.view(&of)).transpose()?, of_weight]))
}

/// The same with operands and results in one layout.
fn by_format(
    format: Format,
    [x, weight, gradient]: [&Tensor; 3],
    config: &ConvConfig,
    needed: [bool; 2],
) -> Result<Option<[Option<Tensor>; 2]>> {
    let of = Convolution {
        dtype: x.dtype(),
        channels_last: format == Format::Nhwc,
        x: x.dims4()?.into(),
        weight: weight.dims4()?.into(),
        y: gradient.dims4()?.into(),
        padding: [config.padding.top, config.padding.left],
        stride: config.stride,
        dilation: config.dilation,
        groups: config.groups,
        residual: false,
        relu: false,
        precision: if x.dtype() == DType::F32 { config.precision } else { ProductPrecision::Fastest },
    };
    let operands = [&format.arrange(x)?, &format.arrange(weight)?, &format.arrange(gradient)?];
    let found = match of.dtype {
        DType::F16 => run::<f16, f32>(&of, operands, needed)?,
        DType::BF16 => run::<bf16, f32>(&of, operands, needed)?,
        DType::F32 => run::<f32, f32>(&of, operands, needed)?,
        _ => None,
    };
    let Some([of_x, of_weight]) = found else { return Ok(None) };
    let view = |of: Option<Tensor>| of.map(|of| format.view(&of)).transpose();
    Ok(Some([view(of_x)?, view(of_weight)?]))
}

fn run<T, C>(of: &Convolution, operands: [&Tensor; 3], needed: [bool; 2]) -> Result<Option<[Option<Tensor>; 2]>>
where
    T: CudaDType + CudnnDataType + DeviceRepr + WithDType,
    C: CudnnDataType,
{
    let device = operands[0].device().as_cuda_device()?;
    with_elements::<T, _, 3>(operands.map(Some), |elements| {
        let [Some(x), Some(weight), Some(gradient)] = &elements else { bail!("a convolution without an operand") };
        let mut found = [None, None];
        for (at, kind) in [Gradient::OfX { weight }, Gradient::OfWeight { x }].iter().enumerate() {
            if !needed[at] {
                continue;
            }
            let mut is_supported = false;
            let of_operand = written::<T>(device, operands[at].elem_count(), |y| {
                is_supported = run_backward::<T, C>(device, of, kind, gradient, y)?;
                Ok(())
            })?;
            if !is_supported {
                return Ok(None);
            }
            found[at] = Some(tensor_of(of_operand, device, operands[at].shape())?);
        }
        Ok(Some(found))
    })
}
