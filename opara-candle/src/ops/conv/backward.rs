//! Gradients of convolutions by cuDNN, with algorithms that give the same bits on every run.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use crate::cuda::driver::convolution::Convolution;
use crate::cuda::driver::cudnn::{run_backward, Gradient};
use crate::cuda::driver::kernels::written;
use crate::cuda::operator::{takes, tensor_of, with_elements};
use crate::ops::{ConvConfig, ProductPrecision};

/// The gradients of image and weight, as far as they are `needed`, by that of the result before anything is added. `None` if cuDNN does not
/// support the convolution.
pub(super) fn gradients(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    config: &ConvConfig,
    needed: [bool; 2],
) -> Result<Option<[Option<Tensor>; 2]>> {
    if !takes(x, &[Some(weight), Some(gradient)]) || !config.padding.is_symmetric() || x.elem_count() == 0 {
        return Ok(None);
    }
    let of = Convolution {
        dtype: x.dtype(),
        channels_last: false,
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
    let operands = [&x.contiguous()?, &weight.contiguous()?, &gradient.contiguous()?];
    match of.dtype {
        DType::F16 => run::<f16, f32>(&of, operands, needed),
        DType::BF16 => run::<bf16, f32>(&of, operands, needed),
        DType::F32 => run::<f32, f32>(&of, operands, needed),
        _ => Ok(None),
    }
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
