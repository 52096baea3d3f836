//! Convolution on a GPU: depthwise and in f64 by this library's kernels, all others by cuDNN or cuBLASLt.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{CpuStorage, CustomOp3, DType, Layout, Module, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

#[cfg(feature = "cudnn")]
use super::dense::convolve;
use super::launch;
#[cfg(feature = "cudnn")]
use super::way::by_fastest_way;
#[cfg(feature = "cudnn")]
use crate::cuda::driver::convolution::{Convolution, Operands};
use crate::cuda::driver::kernels::written;
use crate::cuda::operator::format::Format;
use crate::cuda::operator::plane::Plane;
#[cfg(feature = "cudnn")]
use crate::cuda::operator::with_elements;
use crate::cuda::operator::{elements, is_known};
use crate::gradient::applied3;
#[cfg(feature = "cudnn")]
use crate::ops::ProductPrecision;
use crate::ops::{double_conv, Activation, ConvConfig};

/// Does each output channel depend on its own input channel only?
pub(super) fn is_depthwise(weight: &Tensor, groups: usize) -> bool {
    groups > 1 && weight.dims()[..2] == [groups, 1]
}

/// The weight in the memory layout that convolutions of its dtype take.
fn arrange(weight: &Tensor, groups: usize) -> Result<Tensor> {
    match Format::of(weight.dtype()) {
        Format::Nhwc if is_depthwise(weight, groups) => weight.permute((2, 3, 1, 0))?.contiguous(),
        format => format.arrange(weight),
    }
}

/// The weight with its elements in the memory layout that convolutions of its dtype take, so that calls need not
/// convert it. The shape stays `(out, in / groups, kh, kw)`.
pub(super) fn weight_for(weight: &Tensor, groups: usize) -> Result<Option<Tensor>> {
    let arranged = arrange(weight, groups)?;
    let weight = match Format::of(weight.dtype()) {
        Format::Nhwc if is_depthwise(weight, groups) => arranged.permute((3, 2, 0, 1)),
        format => format.view(&arranged),
    };
    weight.map(Some)
}

/// Convolution in one launch or one library call; in f64, what is added to it comes behind it. `None` if none supports it.
pub(super) fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    config: &ConvConfig,
) -> Result<Option<Tensor>> {
    let dtype = x.dtype();
    let format = Format::of(dtype);
    let depthwise = is_depthwise(weight, config.groups);
    if !is_known(dtype) || x.elem_count() == 0 || !(depthwise || dtype == DType::F64 || cfg!(feature = "cudnn")) {
        return Ok(None);
    }
    if let (Some(residual), true) = (residual, depthwise) {
        let bare = ConvConfig { activation: Activation::None, ..*config };
        let y = conv2d(x, weight, bias, None, &bare)?;
        return y.map(|y| config.activation.forward(&(y + residual)?)).transpose();
    }
    // The depthwise kernel applies this ReLU when it loads.
    let x = match config.input_activation {
        Activation::Relu if depthwise => x.clone(),
        activation => activation.forward(x)?,
    };
    if !depthwise {
        let of = double_conv(&x, weight, config.padding, [config.stride; 2].into(), [config.dilation; 2].into())?;
        if let Some(y) = of {
            let of_channels = |bias: &Tensor| bias.reshape((1, (), 1, 1));
            let y = bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(&of_channels(bias)?))?;
            let y = residual.map_or(Ok(y.clone()), |residual| y + residual)?;
            return config.activation.forward(&y).map(Some);
        }
    }
    let bias = match bias {
        Some(bias) => bias.contiguous()?,
        None => Tensor::zeros(weight.dim(0)?, dtype, x.device())?,
    };
    if depthwise {
        let ((batch, channels, h, w), (_, _, kh, kw)) = (x.dims4()?, weight.dims4()?);
        let plane = Plane::new((batch, channels, h, w), config.output((h, w), (kh, kw))?, format == Format::Nhwc)?;
        let (operand, filter) = (format.arrange(&x)?, arrange(weight, config.groups)?);
        let kernel = Depthwise { config: *config, plane, kernel: (kh, kw) };
        return format.view(&applied3(&operand, &filter, &bias, &kernel)?).map(Some);
    }
    #[cfg(feature = "cudnn")]
    return by_fastest_way(&x, weight, config, residual.is_some(), |x, weight, config| {
        dense(x, weight, &bias, residual, config)
    })
    .map(Some);
    #[cfg(not(feature = "cudnn"))]
    Ok(None)
}

/// Convolution by cuDNN, cuBLASLt or this library's kernels, whose padding is equal at opposite edges.
#[cfg(feature = "cudnn")]
fn dense(x: &Tensor, weight: &Tensor, bias: &Tensor, residual: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
    let (dtype, format) = (x.dtype(), Format::of(x.dtype()));
    let ((batch, channels, h, w), (out, _, kh, kw)) = (x.dims4()?, weight.dims4()?);
    let (oh, ow) = config.output((h, w), (kh, kw))?;
    let of = Convolution {
        dtype,
        channels_last: format == Format::Nhwc,
        x: [batch, channels, h, w],
        weight: weight.dims4()?.into(),
        y: [batch, out, oh, ow],
        padding: [config.padding.top, config.padding.left],
        stride: config.stride,
        dilation: config.dilation,
        groups: config.groups,
        residual: residual.is_some(),
        relu: config.activation == Activation::Relu,
        // Other types have one.
        precision: if dtype == DType::F32 { config.precision } else { ProductPrecision::Fastest },
    };
    let (operand, filter) = (format.arrange(x)?, arrange(weight, config.groups)?);
    let residual = residual.map(|residual| format.arrange(residual)).transpose()?;
    format.view(&applied3(&operand, &filter, bias, &Dense { of, residual })?)
}

/// Depthwise convolution.
struct Depthwise {
    config: ConvConfig,
    plane: Plane,
    kernel: (usize, usize),
}

impl Depthwise {
    fn run<T: CudaDType + DeviceRepr>(&self, operands: [(&CudaStorage, &Layout); 3]) -> Result<CudaStorage> {
        let device = &operands[0].0.device;
        let [x, weight, bias] = operands;
        let (dtype, config) = (x.0.dtype(), &self.config);
        let (x, weight, bias) = (elements(x.0, x.1)?, elements(weight.0, weight.1)?, elements(bias.0, bias.1)?);
        let y = written::<T>(device, self.plane.results(), |y| {
            launch::depthwise(device, dtype, &self.plane, self.kernel, config, &x, &weight, &bias, y)
        })?;
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }
}

/// Every other convolution, by cuDNN or cuBLASLt.
#[cfg(feature = "cudnn")]
struct Dense {
    of: Convolution,
    /// What is added, in the result's layout.
    residual: Option<Tensor>,
}

#[cfg(feature = "cudnn")]
impl Dense {
    /// `C` is the accumulator type.
    fn run<T, C>(&self, operands: [(&CudaStorage, &Layout); 3]) -> Result<CudaStorage>
    where
        T: CudaDType + DeviceRepr + candle::WithDType + cudarc::cudnn::CudnnDataType,
        C: cudarc::cudnn::CudnnDataType,
    {
        let device = &operands[0].0.device;
        let [x, weight, bias] = operands;
        let (x, weight, bias) = (elements::<T>(x.0, x.1)?, elements(weight.0, weight.1)?, elements(bias.0, bias.1)?);
        let y = with_elements([self.residual.as_ref()], |[residual]| {
            let operands = Operands { x, weight, bias, residual };
            written(device, self.of.y.iter().product(), |y| convolve::<T, C>(device, &self.of, &operands, y))
        })?;
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }
}

macro_rules! on_gpu {
    ($op:ty, $name:literal, |$self:ident| $shape:expr, $run:ident: $($dtype:ident => [$($types:ty),*]),*) => {
        impl CustomOp3 for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn cpu_fwd(
                &self,
                _: &CpuStorage,
                _: &Layout,
                _: &CpuStorage,
                _: &Layout,
                _: &CpuStorage,
                _: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                candle::bail!("this operator needs a tensor on a GPU")
            }

            fn cuda_fwd(
                &self,
                x: &CudaStorage,
                x_layout: &Layout,
                weight: &CudaStorage,
                weight_layout: &Layout,
                bias: &CudaStorage,
                bias_layout: &Layout,
            ) -> Result<(CudaStorage, Shape)> {
                let operands = [(x, x_layout), (weight, weight_layout), (bias, bias_layout)];
                let y = match x.dtype() {
                    $(DType::$dtype => self.$run::<$($types),*>(operands)?,)*
                    dtype => candle::bail!("{} has no kernel for {dtype:?}", $name),
                };
                let $self = self;
                Ok((y, Shape::from($shape)))
            }
        }
    };
}

on_gpu!(Depthwise, "depthwise", |op| op.plane.shape(), run: F16 => [f16], BF16 => [bf16], F32 => [f32], F64 => [f64]);
#[cfg(feature = "cudnn")]
on_gpu!(Dense, "conv2d", |op| op.of.shape(), run: F16 => [f16, f32], BF16 => [bf16, f32], F32 => [f32, f32],
    F64 => [f64, f64]);
