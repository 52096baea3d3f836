//! Cross-entropy on a GPU: two launches, and one for its gradient.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::config::CrossEntropy;
use super::launch::{self, of_rows, ONE};
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{rows_of, tensor_of, with_elements};

/// The loss, and what the gradient needs beside the operands. `None` if the kernels do not support the operands.
pub(super) fn cross_entropy(logits: &Tensor, targets: &Tensor, of: CrossEntropy) -> Result<Option<(Tensor, Tensor)>> {
    let Some(rows) = rows(logits, targets) else { return Ok(None) };
    let (logits, targets) = (&logits.contiguous()?, &targets.contiguous()?);
    match targets.dtype() {
        DType::U32 => for_kernel_float!(logits.dtype(), losses::<u32>(logits, targets, of, rows)).transpose(),
        DType::I64 => for_kernel_float!(logits.dtype(), losses::<i64>(logits, targets, of, rows)).transpose(),
        _ => Ok(None),
    }
}

/// The gradient of the logits; `losses` are what [`cross_entropy`] gave.
pub(super) fn gradient(
    logits: &Tensor,
    targets: &Tensor,
    losses: &Tensor,
    gradient: &Tensor,
    of: CrossEntropy,
) -> Result<Option<Tensor>> {
    let Some(rows) = rows(logits, targets) else { return Ok(None) };
    let operands = [&logits.contiguous()?, &targets.contiguous()?, losses, &gradient.contiguous()?];
    match targets.dtype() {
        DType::U32 => for_kernel_float!(logits.dtype(), gradient_of::<u32>(operands, of, rows)).transpose(),
        DType::I64 => for_kernel_float!(logits.dtype(), gradient_of::<i64>(operands, of, rows)).transpose(),
        _ => Ok(None),
    }
}

fn rows(logits: &Tensor, targets: &Tensor) -> Option<Rows> {
    let is_together = targets.device().same_device(logits.device());
    rows_of(logits, &[]).filter(|of| is_together && of.elements() > 0 && of.rows() == targets.elem_count())
}

fn losses<I: CudaDType + WithDType + DeviceRepr, T: CudaDType + WithDType + DeviceRepr>(
    logits: &Tensor,
    targets: &Tensor,
    of: CrossEntropy,
    rows: Rows,
) -> Result<(Tensor, Tensor)> {
    let device = logits.device().as_cuda_device()?;
    let (columns, rows, ignored, smoothing) = (rows.columns(), rows.rows(), of.ignored(), of.smoothing);
    let variant = format!("{}_{}", I::DTYPE.as_str(), T::DTYPE.as_str());
    with_elements::<I, _, 1>([Some(targets)], |[targets]| {
        with_elements::<T, _, 1>([Some(logits)], |[logits]| {
            let (Some(targets), Some(logits)) = (&targets, &logits) else { bail!("a loss without an operand") };
            let losses = written::<f32>(device, 2 * rows, |losses| {
                let losses = losses.as_view_mut();
                launch::CrossEntropy { columns, ignored, smoothing, rows, logits, targets, losses }.launch(
                    device,
                    &variant,
                    ptx::CROSS_ENTROPY,
                    of_rows(rows, columns, wide(T::DTYPE)),
                )
            })?;
            let loss = written::<f32>(device, 1, |y| {
                let (losses, y) = (&losses.as_view(), y.as_view_mut());
                launch::MeanLoss { rows, ignored, targets, losses, y }.launch(
                    device,
                    I::DTYPE.as_str(),
                    ptx::CROSS_ENTROPY,
                    ONE,
                )
            })?;
            Ok((tensor_of(loss, device, ())?, tensor_of(losses, device, 2 * rows)?))
        })
    })
}

fn gradient_of<I: CudaDType + WithDType + DeviceRepr, T: CudaDType + WithDType + DeviceRepr>(
    [logits, targets, losses, gradient]: [&Tensor; 4],
    of: CrossEntropy,
    rows: Rows,
) -> Result<Tensor> {
    let device = logits.device().as_cuda_device()?;
    let (elements, shape) = (rows.elements(), logits.shape());
    let (columns, rows, ignored, smoothing) = (rows.columns(), rows.rows(), of.ignored(), of.smoothing);
    let variant = format!("{}_{}", I::DTYPE.as_str(), T::DTYPE.as_str());
    let y = with_elements::<I, _, 1>([Some(targets)], |[targets]| {
        with_elements::<f32, _, 2>([Some(losses), Some(gradient)], |numbers| {
            with_elements::<T, _, 1>([Some(logits)], |[logits]| {
                let (Some(targets), Some(logits), [Some(losses), Some(gradient)]) = (&targets, &logits, &numbers)
                else {
                    bail!("a loss without an operand")
                };
                written::<T>(device, elements, |y| {
                    let y = y.as_view_mut();
                    launch::CrossEntropyGradient {
                        columns,
                        ignored,
                        smoothing,
                        rows,
                        logits,
                        targets,
                        losses,
                        gradient,
                        y,
                    }
                    .launch(
                        device,
                        &variant,
                        ptx::CROSS_ENTROPY,
                        of_rows(rows, columns, wide(T::DTYPE)),
                    )
                })
            })
        })
    })?;
    tensor_of(y, device, shape)
}
