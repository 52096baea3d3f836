//! The logarithm of the softmax at one class on a GPU: a launch, and one for its gradient.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch::{self, of_rows};
use super::pitch::pitch;
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::{begin_wide, takes, tensor_of, with_elements};

/// `None` if the kernel does not support the operands.
pub(super) fn log_softmax_at(x: &Tensor, classes: &Tensor) -> Result<Option<Tensor>> {
    let Some(rows) = Rows::of(x, classes)? else { return Ok(None) };
    match classes.dtype() {
        DType::U32 => for_kernel_float!(x.dtype(), run::<u32>(&rows)).transpose(),
        DType::I64 => for_kernel_float!(x.dtype(), run::<i64>(&rows)).transpose(),
        _ => Ok(None),
    }
}

/// The gradient of `x`, with zeros behind its rows. `None` if the kernel does not support the operands.
pub(super) fn gradient(x: &Tensor, classes: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
    let Some(rows) = Rows::of(x, classes)? else { return Ok(None) };
    let gradient = gradient.to_dtype(DType::F32)?.contiguous()?;
    match classes.dtype() {
        DType::U32 => for_kernel_float!(x.dtype(), gradient_of::<u32>(&rows, &gradient)).transpose(),
        DType::I64 => for_kernel_float!(x.dtype(), gradient_of::<i64>(&rows, &gradient)).transpose(),
        _ => Ok(None),
    }
}

/// Rows that begin `pitch` elements apart, and their classes.
struct Rows {
    x: Tensor,
    classes: Tensor,
    pitch: usize,
}

impl Rows {
    fn of(x: &Tensor, classes: &Tensor) -> Result<Option<Self>> {
        let fits = x.rank() == 2 && x.elem_count() > 0 && classes.dims() == [x.dim(0)?];
        if !fits || !takes(x, &[]) || !classes.device().same_device(x.device()) || x.elem_count() > i32::MAX as usize {
            return Ok(None);
        }
        let is_taken = (x.is_contiguous() || pitch(x) > x.dim(1)?) && begin_wide([x])?;
        let x = if is_taken { x.clone() } else { x.force_contiguous()? };
        let pitch = pitch(&x);
        Ok(Some(Self { x, classes: classes.contiguous()?, pitch }))
    }
}

fn run<I: CudaDType + WithDType + DeviceRepr, T: CudaDType + WithDType + DeviceRepr>(of: &Rows) -> Result<Tensor> {
    let ((rows, columns), pitch) = (of.x.dims2()?, of.pitch);
    let device = of.x.device().as_cuda_device()?;
    let variant = format!("{}_{}", I::DTYPE.as_str(), T::DTYPE.as_str());
    let y = with_elements::<I, _, 1>([Some(&of.classes)], |[classes]| {
        with_elements::<T, _, 1>([Some(&of.x)], |[x]| {
            let (Some(classes), Some(x)) = (&classes, &x) else { bail!("a softmax without an operand") };
            written::<f32>(device, rows, |y| {
                launch::LogSoftmaxAt { rows, columns, pitch, x, classes, y: y.as_view_mut() }.launch(
                    device,
                    &variant,
                    ptx::LOG_SOFTMAX,
                    of_rows(rows, columns, wide(T::DTYPE)),
                )
            })
        })
    })?;
    tensor_of(y, device, rows)
}

fn gradient_of<I: CudaDType + WithDType + DeviceRepr, T: CudaDType + WithDType + DeviceRepr>(
    of: &Rows,
    gradient: &Tensor,
) -> Result<Tensor> {
    let ((rows, columns), pitch) = (of.x.dims2()?, of.pitch);
    let device = of.x.device().as_cuda_device()?;
    let variant = format!("{}_{}", I::DTYPE.as_str(), T::DTYPE.as_str());
    let numel = rows * pitch;
    let y = with_elements::<I, _, 1>([Some(&of.classes)], |[classes]| {
        with_elements::<f32, _, 1>([Some(gradient)], |[gradient]| {
            with_elements::<T, _, 1>([Some(&of.x)], |[x]| {
                let (Some(classes), Some(gradient), Some(x)) = (&classes, &gradient, &x) else {
                    bail!("a softmax without an operand")
                };
                written::<T>(device, numel, |y| {
                    let y = y.as_view_mut();
                    launch::LogSoftmaxAtGradient { rows, numel, columns, pitch, x, classes, gradient, y }.launch(
                        device,
                        &variant,
                        ptx::LOG_SOFTMAX,
                        of_rows(rows, columns, wide(T::DTYPE)),
                    )
                })
            })
        })
    })?;
    tensor_of(y, device, (rows, pitch))
}
