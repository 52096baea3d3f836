//! Moments of columns, and sums of a batch norm's gradient, on a GPU.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch;
use crate::cuda::driver::kernels::{ptx, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{rows_of, takes, tensor_of, with_elements};
use crate::ops::column_sums::cuda::totals;
use crate::ops::column_sums::launch::{of_columns, Shares};

/// Means and variances of the columns, `(2, columns)`. `None` if the kernels do not support the operand.
pub(super) fn moments(x: &Tensor) -> Result<Option<Tensor>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    for_kernel_float!(x.dtype(), moments_of(&x.contiguous()?, of)).transpose()
}

fn moments_of<T: CudaDType + WithDType + DeviceRepr>(x: &Tensor, of: Rows) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let (rows, columns, shares) = (of.rows(), of.columns(), Shares::of(of.rows()));
    let moments = with_elements::<T, _, 1>([Some(x)], |[x]| {
        let Some(x) = &x else { bail!("moments without an operand") };
        written::<f32>(device, 2 * shares.count * columns, |moments| {
            let moments = moments.as_view_mut();
            launch::BatchMoments { rows, columns, share: shares.rows, shares: shares.count, x, moments }.launch(
                device,
                T::DTYPE.as_str(),
                ptx::BATCH_NORM,
                shares.config(columns),
            )
        })
    })?;
    let y = written::<f32>(device, 2 * columns, |y| {
        let (moments, y) = (&moments.as_view(), y.as_view_mut());
        launch::BatchTotals { rows, columns, share: shares.rows, shares: shares.count, moments, y }.launch(
            device,
            DType::F32.as_str(),
            ptx::BATCH_NORM,
            of_columns(columns, 1, 1),
        )
    })?;
    tensor_of(y, device, (2, columns))
}

/// The sums of a gradient's columns, and of those of its products with the normalised rows, `(2, columns)`. `None` if the kernels do not
/// support the operands.
pub(super) fn sums(x: &Tensor, gradient: &Tensor, moments: [&Tensor; 2], eps: f32) -> Result<Option<Tensor>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    let are_moments = moments.iter().all(|of| of.dtype() == DType::F32 && of.device().same_device(x.device()));
    if !takes(x, &[Some(gradient)]) || gradient.shape() != x.shape() || !are_moments {
        return Ok(None);
    }
    let [mean, variance] = [moments[0].contiguous()?, moments[1].contiguous()?];
    for_kernel_float!(x.dtype(), sums_of([&x.contiguous()?, &gradient.contiguous()?], [&mean, &variance], eps, of))
        .transpose()
}

fn sums_of<T: CudaDType + WithDType + DeviceRepr>(
    operands: [&Tensor; 2],
    moments: [&Tensor; 2],
    eps: f32,
    of: Rows,
) -> Result<Tensor> {
    let device = operands[0].device().as_cuda_device()?;
    let (rows, columns, shares) = (of.rows(), of.columns(), Shares::of(of.rows()));
    let sums = with_elements::<T, _, 2>(operands.map(Some), |operands| {
        let [Some(x), Some(gradient)] = &operands else { bail!("a batch norm without an operand") };
        with_elements::<f32, _, 2>(moments.map(Some), |moments| {
            let [Some(mean), Some(variance)] = &moments else { bail!("a batch norm without its moments") };
            written::<f32>(device, 2 * shares.count * columns, |sums| {
                let (share, shares_count, sums) = (shares.rows, shares.count, sums.as_view_mut());
                launch::BatchGradient {
                    rows,
                    columns,
                    share,
                    eps,
                    shares: shares_count,
                    x,
                    gradient,
                    mean,
                    variance,
                    sums,
                }
                .launch(device, T::DTYPE.as_str(), ptx::BATCH_NORM, shares.config(columns))
            })
        })
    })?;
    tensor_of(totals::<f32>(device, &sums.as_view(), 2, shares.count, columns)?, device, (2, columns))
}
