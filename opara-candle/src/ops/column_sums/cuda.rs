//! Sums of columns on a GPU.

use candle::cuda_backend::CudaDType;
use candle::{bail, CudaDevice, Result, Tensor, WithDType};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::launch::{self, of_columns, Shares};
use crate::activation::Activation;
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{begin_wide, rows_of, tensor_of, with_elements};

/// The sums of the columns of `x`. `None` if the kernel does not support it.
pub(super) fn column_sums(x: &Tensor) -> Result<Option<Tensor>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    for_kernel_float!(x.dtype(), sums_of(&x.contiguous()?, of)).transpose()
}

/// The shares of rows, the kernel and its launch. Threads have vectors of columns where operands begin at vectors and rows are whole ones.
fn shares_of<T: WithDType>(rows: usize, columns: usize, begin_wide: bool) -> (Shares, String, LaunchConfig) {
    let (name, wide) = (T::DTYPE.as_str(), wide(T::DTYPE));
    match Shares::of_vectors(rows, columns, wide).filter(|_| begin_wide) {
        Some(shares) => (shares, format!("wide_{name}"), shares.config_of_vectors(columns, wide)),
        None => (Shares::of(rows), name.into(), Shares::of(rows).config(columns)),
    }
}

fn sums_of<T: CudaDType + WithDType + DeviceRepr>(x: &Tensor, of: Rows) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let (rows, columns) = (of.rows(), of.columns());
    let (shares, variant, config) = shares_of::<T>(rows, columns, begin_wide([x])?);
    let sums = with_elements::<T, _, 1>([Some(x)], |[x]| {
        let Some(x) = &x else { bail!("sums without an operand") };
        written::<f32>(device, shares.count * columns, |sums| {
            let sums = sums.as_view_mut();
            let launch = launch::ColumnSums { rows, columns, share: shares.rows, shares: shares.count, x, sums };
            launch.launch(device, &variant, ptx::COLUMN_SUMS, config)
        })
    })?;
    tensor_of(totals::<T>(device, &sums.as_view(), 1, shares.count, columns)?, device, columns)
}

/// The sums of the columns of several sets of rows, one behind the other.
pub(in crate::ops) fn totals<T: CudaDType + WithDType + DeviceRepr>(
    device: &CudaDevice,
    sums: &CudaView<f32>,
    sets: usize,
    rows: usize,
    columns: usize,
) -> Result<CudaSlice<T>> {
    written::<T>(device, sets * columns, |y| {
        launch::ColumnTotals { rows, columns, sets, sums, y: y.as_view_mut() }.launch(
            device,
            T::DTYPE.as_str(),
            ptx::COLUMN_SUMS,
            of_columns(columns, 1, sets),
        )
    })
}

/// The gradient before an activation of `x`, and the sums of its columns. `None` if the kernel does not support the operands.
pub(super) fn activation_gradient(
    x: &Tensor,
    gradient: &Tensor,
    activation: Activation,
) -> Result<Option<(Tensor, Tensor)>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    if gradient.shape() != x.shape() || gradient.dtype() != x.dtype() {
        return Ok(None);
    }
    for_kernel_float!(x.dtype(), gradient_of(&x.contiguous()?, &gradient.contiguous()?, activation, of)).transpose()
}

fn gradient_of<T: CudaDType + WithDType + DeviceRepr>(
    x: &Tensor,
    gradient: &Tensor,
    activation: Activation,
    of: Rows,
) -> Result<(Tensor, Tensor)> {
    let device = x.device().as_cuda_device()?;
    let (rows, columns) = (of.rows(), of.columns());
    let (shares, variant, config) = shares_of::<T>(rows, columns, begin_wide([x, gradient])?);
    let sums = written::<f32>(device, shares.count * columns, |_| Ok(()))?;
    let y = with_elements::<T, _, 2>([Some(x), Some(gradient)], |operands| {
        let [Some(x), Some(gradient)] = &operands else { bail!("an activation without an operand") };
        written::<T>(device, of.elements(), |y| {
            launch::ActivationGradient {
                rows,
                columns,
                share: shares.rows,
                activation: activation.code(),
                shares: shares.count,
                x,
                gradient,
                sums: &sums.as_view(),
                y: y.as_view_mut(),
            }
            .launch(device, &variant, ptx::COLUMN_SUMS, config)
        })
    })?;
    let sums = totals::<T>(device, &sums.as_view(), 1, shares.count, columns)?;
    Ok((tensor_of(y, device, x.shape())?, tensor_of(sums, device, columns)?))
}
