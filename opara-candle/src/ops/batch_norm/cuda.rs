//! Batch norms on a GPU: moments of columns, normalised rows, and gradients.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch::{self, of_shares, of_vectors};
use crate::activation::Activation;
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{begin_wide, rows_of, takes, tensor_of, with_elements};
use crate::ops::column_sums::cuda::totals;
use crate::ops::column_sums::launch::of_columns;

/// Means and variances of the columns, `(2, columns)`. `None` if the kernels do not support the operand.
pub(super) fn moments(x: &Tensor) -> Result<Option<Tensor>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    for_kernel_float!(x.dtype(), moments_of(&x.contiguous()?, of)).transpose()
}

fn moments_of<T: CudaDType + WithDType + DeviceRepr>(x: &Tensor, of: Rows) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let (rows, columns) = (of.rows(), of.columns());
    let (shares, config, kind) = of_shares(rows, columns, vectors_of(x, &[], columns)?.0);
    let moments = with_elements::<T, _, 1>([Some(x)], |[x]| {
        let Some(x) = &x else { bail!("moments without an operand") };
        written::<f32>(device, 2 * shares.count * columns, |moments| {
            let moments = moments.as_view_mut();
            launch::BatchMoments { rows, columns, share: shares.rows, shares: shares.count, x, moments }.launch(
                device,
                &format!("{kind}{}", T::DTYPE.as_str()),
                ptx::BATCH_NORM,
                config,
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

/// Do the kernels support these operands?
fn are_known(x: &Tensor, gradient: Option<&Tensor>, moments: [&Tensor; 2], vectors: Option<[&Tensor; 2]>) -> bool {
    let columns = x.dims().last().copied().unwrap_or_default();
    let is_vector = |of: &&Tensor| of.dims() == [columns] && of.is_contiguous();
    let are_moments = moments.iter().all(|of| of.dtype() == DType::F32 && of.device().same_device(x.device()));
    let [scale, shift] = [0, 1].map(|at| vectors.map(|vectors| vectors[at]));
    takes(x, &[gradient, scale, shift])
        && are_moments
        && moments.iter().all(is_vector)
        && [scale, shift].iter().flatten().all(is_vector)
        && gradient.is_none_or(|gradient| gradient.shape() == x.shape())
}

/// The columns of a thread for vectors of an operand, and the ending of the kernel's name.
fn vectors_of(x: &Tensor, others: &[&Tensor], columns: usize) -> Result<(usize, String)> {
    let are_wide =
        columns.is_multiple_of(wide(x.dtype())) && begin_wide([x].into_iter().chain(others.iter().copied()))?;
    let by = if are_wide { wide(x.dtype()) } else { 1 };
    Ok((by, format!("by{by}_{}", x.dtype().as_str())))
}

/// The normalised rows with their activation. `None` if the kernels do not support the operands.
pub(super) fn normed(
    x: &Tensor,
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    eps: f32,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    if !are_known(x, None, moments, vectors) {
        return Ok(None);
    }
    for_kernel_float!(x.dtype(), normed_of(&x.contiguous()?, moments, vectors, (eps, activation), of)).transpose()
}

fn normed_of<T: CudaDType + WithDType + DeviceRepr>(
    x: &Tensor,
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    (eps, activation): (f32, Activation),
    of: Rows,
) -> Result<Tensor> {
    let (device, rows, columns) = (x.device().as_cuda_device()?, of.rows(), of.columns());
    let (by, variant) = vectors_of(x, &[], columns)?;
    let [scale, shift] = [0, 1].map(|at| vectors.map(|vectors| vectors[at]));
    let y = with_elements::<T, _, 3>([Some(x), scale, shift], |[x, scale, shift]| {
        with_elements::<f32, _, 2>(moments.map(Some), |moments| {
            let (Some(x), [Some(mean), Some(variance)]) = (&x, &moments) else { bail!("a norm without an operand") };
            written::<T>(device, rows * columns, |y| {
                let (scale, shift, y) = (scale.as_ref(), shift.as_ref(), y.as_view_mut());
                let activation = activation.code();
                launch::BatchNorm { rows, columns, eps, activation, x, mean, variance, scale, shift, y }.launch(
                    device,
                    &variant,
                    ptx::BATCH_NORM,
                    of_vectors(rows, columns / by),
                )
            })
        })
    })?;
    tensor_of(y, device, x.shape())
}

/// The gradients of rows, scale and shift. `None` if the kernels do not support the operands.
pub(super) fn gradients(
    x: &Tensor,
    gradient: &Tensor,
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    eps: f32,
    activation: Activation,
) -> Result<Option<[Tensor; 3]>> {
    let Some(of) = rows_of(x, &[]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    if !are_known(x, Some(gradient), moments, vectors) {
        return Ok(None);
    }
    let operands = [&x.contiguous()?, &gradient.contiguous()?];
    for_kernel_float!(x.dtype(), gradients_of(operands, moments, vectors, (eps, activation), of)).transpose()
}

fn gradients_of<T: CudaDType + WithDType + DeviceRepr>(
    [x, gradient]: [&Tensor; 2],
    moments: [&Tensor; 2],
    vectors: Option<[&Tensor; 2]>,
    (eps, activation): (f32, Activation),
    of: Rows,
) -> Result<[Tensor; 3]> {
    let device = x.device().as_cuda_device()?;
    let (rows, columns) = (of.rows(), of.columns());
    let (by, variant) = vectors_of(x, &[gradient], columns)?;
    let (shares, config, kind) = of_shares(rows, columns, by);
    let [scale, shift] = [0, 1].map(|at| vectors.map(|vectors| vectors[at]));
    let operands = [Some(x), Some(gradient), scale, shift];
    let (of_x, sums) = with_elements::<T, _, 4>(operands, |[x, gradient, scale, shift]| {
        with_elements::<f32, _, 2>(moments.map(Some), |moments| {
            let (Some(x), Some(gradient), [Some(mean), Some(variance)]) = (&x, &gradient, &moments) else {
                bail!("a batch norm without an operand")
            };
            let (scale, shift, activation) = (scale.as_ref(), shift.as_ref(), activation.code());
            let sums = written::<f32>(device, 2 * shares.count * columns, |sums| {
                launch::BatchGradient {
                    rows,
                    columns,
                    share: shares.rows,
                    eps,
                    activation,
                    shares: shares.count,
                    x,
                    gradient,
                    mean,
                    variance,
                    scale,
                    shift,
                    sums: sums.as_view_mut(),
                }
                .launch(device, &format!("{kind}{}", T::DTYPE.as_str()), ptx::BATCH_NORM, config)
            })?;
            let sums = totals::<f32>(device, &sums.as_view(), 2, shares.count, columns)?;
            let of_x = written::<T>(device, rows * columns, |y| {
                launch::BatchNormGradient {
                    rows,
                    columns,
                    eps,
                    activation,
                    x,
                    gradient,
                    mean,
                    variance,
                    scale,
                    shift,
                    sums: &sums.as_view(),
                    y: y.as_view_mut(),
                }
                .launch(device, &variant, ptx::BATCH_NORM, of_vectors(rows, columns / by))
            })?;
            Ok((of_x, sums))
        })
    })?;
    let sums = tensor_of(sums, device, (2, columns))?;
    let [of_shift, of_scale] = [0, 1].map(|at| sums.get(at));
    Ok([tensor_of(of_x, device, x.shape())?, of_scale?, of_shift?])
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;
    use crate::ops::test_numbers::numbers;
    use crate::ops::{batch_norm, batch_norm_backward};
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn norms_and_their_gradients_agree_with_f64() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let numbers = |seed: usize, shape: (usize, usize)| numbers(seed, shape, DType::F64);
        for (rows, columns) in [(7, 5), (300, 64), (1000, 24), (65, 2056)] {
            for (dtype, most) in [(DType::F32, 1e-4), (DType::BF16, 4e-2)] {
                for activation in [Activation::None, Activation::Relu, Activation::Silu] {
                    let rounded = |t: Tensor| t.to_dtype(dtype)?.to_dtype(DType::F64);
                    let (x, g) = (rounded(numbers(1, (rows, columns))?)?, rounded(numbers(2, (rows, columns))?)?);
                    let vectors = [3, 4].map(|seed| rounded(numbers(seed, (1, columns))?.flatten_all()?));
                    let [scale, shift] = vectors;
                    let (scale, shift) = (scale?, shift?);
                    let mean = x.mean(0)?;
                    let variance = x.broadcast_sub(&mean)?.sqr()?.mean(0)?;
                    let y = batch_norm(&x, [&mean, &variance], Some([&scale, &shift]), 1e-3, activation)?;
                    let back =
                        batch_norm_backward(&x, [&mean, &variance], Some([&scale, &shift]), &g, 1e-3, activation)?;
                    let on = |t: &Tensor, dtype| t.to_dtype(dtype)?.to_device(&device);
                    let moments = [&on(&mean, DType::F32)?, &on(&variance, DType::F32)?];
                    let of_vectors = Some([&on(&scale, dtype)?, &on(&shift, dtype)?]);
                    let (on_x, on_g) = (on(&x, dtype)?, on(&g, dtype)?);
                    let Some(got) = normed(&on_x, moments, of_vectors, 1e-3, activation)? else { bail!("no kernel") };
                    let Some(of) = gradients(&on_x, &on_g, moments, of_vectors, 1e-3, activation)? else {
                        bail!("no kernel")
                    };
                    for (got, expected) in [got].iter().chain(&of).zip([y].iter().chain(&back)) {
                        let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                        let size = expected.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                        let error = (got - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                        assert!(
                            error <= most * size.max(1.),
                            "{rows} x {columns}, {activation:?}: {error:.1e} of {size}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Also where the mean is far from zero, and where all rows are one. Needs a GPU; skips without one.
    #[test]
    fn moments_agree_with_f64() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        for (rows, columns) in [(7, 5), (1, 64), (300, 64), (1000, 24), (65, 2056), (40_000, 16)] {
            for (dtype, by, plus) in
                [(DType::F32, 1., 0.), (DType::F32, 1., 300.), (DType::BF16, 1., 0.), (DType::F16, 0., 3.)]
            {
                let x = numbers(1, (rows, columns), DType::F64)?.affine(by, plus)?.to_dtype(dtype)?;
                let wide = x.to_dtype(DType::F64)?;
                let mean = wide.mean(0)?;
                let variance = wide.broadcast_sub(&mean)?.sqr()?.mean(0)?;
                let Some(got) = moments(&x.to_device(&device)?)? else { bail!("no kernel") };
                let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                for (at, expected) in [mean, variance].into_iter().enumerate() {
                    let error = (got.get(at)? - &expected)?.abs()?.max(0)?.to_scalar::<f64>()?;
                    let size = expected.abs()?.max(0)?.to_scalar::<f64>()?;
                    assert!(error <= 2e-5 * size, "{at} of {rows} x {columns} {dtype:?}: off by {error:e} of {size:e}");
                }
            }
        }
        Ok(())
    }
}
