//! Gradients of norms on a GPU: of rows by a warp each, and of columns beside that; or of both by blocks.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::gradient_launch::{self as launch, of_blocks, of_warps};
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{begin_wide, rows_of, tensor_of, with_elements};
use crate::ops::column_sums::cuda::totals;
use crate::ops::column_sums::launch::Shares;

/// The gradients of `x`, plus `beside`, and of scale and shift one behind the other; an RMS norm has no shift. `None` if the kernels do not
/// support the operands.
pub(super) fn gradients(
    x: &Tensor,
    scale: &Tensor,
    gradient: &Tensor,
    beside: Option<&Tensor>,
    eps: f32,
    is_centred: bool,
) -> Result<Option<(Tensor, Tensor)>> {
    let Some(of) = rows_of(x, &[Some(scale)]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    if [Some(gradient), beside].into_iter().flatten().any(|of| of.shape() != x.shape() || of.dtype() != x.dtype()) {
        return Ok(None);
    }
    let beside = beside.map(Tensor::contiguous).transpose()?;
    let (x, scale, gradient) = (x.contiguous()?, scale.contiguous()?, gradient.contiguous()?);
    let operands = [Some(&x), Some(&scale), Some(&gradient), beside.as_ref()];
    let call = NormGradient { of, like: &x, eps, is_centred };
    match (begin_wide(operands.into_iter().flatten())?, of_warps(of, wide(x.dtype())), of_blocks(of, wide(x.dtype()))) {
        (true, Some(launch), _) => for_kernel_float!(x.dtype(), by_warps(&call, launch, operands)).transpose(),
        (_, _, Some(launch)) => for_kernel_float!(x.dtype(), by_blocks(&call, launch, operands)).transpose(),
        _ => Ok(None),
    }
}

struct NormGradient<'a> {
    of: Rows,
    like: &'a Tensor,
    eps: f32,
    is_centred: bool,
}

impl NormGradient<'_> {
    /// Vectors that have gradients: scale and shift, or the scale alone.
    fn sets(&self) -> usize {
        1 + usize::from(self.is_centred)
    }

    /// The gradient of `x`, and those of the vectors, by their sums in parts.
    fn finish<T: CudaDType + WithDType + DeviceRepr>(
        &self,
        y: CudaSlice<T>,
        sums: &CudaSlice<f32>,
        parts: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (device, columns) = (self.like.device().as_cuda_device()?, self.of.columns());
        let of_vectors = totals::<T>(device, &sums.as_view(), self.sets(), parts, columns)?;
        Ok((tensor_of(y, device, self.like.shape())?, tensor_of(of_vectors, device, self.sets() * columns)?))
    }
}

/// `x`, scale, gradient, and the gradient that is added.
struct Views<'a, T> {
    x: &'a CudaView<'a, T>,
    scale: &'a CudaView<'a, T>,
    gradient: &'a CudaView<'a, T>,
    beside: Option<&'a CudaView<'a, T>>,
}

fn with_views<T: CudaDType, R>(operands: [Option<&Tensor>; 4], f: impl FnOnce(Views<'_, T>) -> Result<R>) -> Result<R> {
    with_elements::<T, _, 4>(operands, |operands| {
        let [Some(x), Some(scale), Some(gradient), beside] = &operands else { bail!("a norm without an operand") };
        f(Views { x, scale, gradient, beside: beside.as_ref() })
    })
}

fn by_warps<T: CudaDType + WithDType + DeviceRepr>(
    call: &NormGradient,
    (held, config): (usize, LaunchConfig),
    operands: [Option<&Tensor>; 4],
) -> Result<(Tensor, Tensor)> {
    let &NormGradient { of, like, eps, is_centred } = call;
    let device = like.device().as_cuda_device()?;
    let (rows, columns, dtype) = (of.rows(), of.columns(), T::DTYPE.as_str());
    let variant = format!("{}_{held}_{dtype}", if is_centred { "layer" } else { "rms" });
    let (Shares { rows: share, count: shares }, of_columns) = Shares::of_both(rows, columns / wide(T::DTYPE));
    with_views::<T, _>(operands, |Views { x, scale, gradient, beside }| {
        let moments = written::<f32>(device, 2 * rows, |_| Ok(()))?;
        let moments = &moments.as_view();
        let y = written::<T>(device, of.elements(), |y| {
            let y = y.as_view_mut();
            launch::RowsGradient { rows, columns, eps, x, scale, gradient, beside, moments, y }.launch(
                device,
                &variant,
                ptx::NORM_GRADIENT,
                config,
            )
        })?;
        let sums = written::<f32>(device, call.sets() * shares * columns, |sums| {
            let sums = sums.as_view_mut();
            match is_centred {
                true => launch::LayerColumnsGradient { rows, columns, share, shares, x, gradient, moments, sums }
                    .launch(device, dtype, ptx::NORM_GRADIENT, of_columns),
                false => launch::RmsColumnsGradient { rows, columns, share, shares, x, gradient, moments, sums }
                    .launch(device, dtype, ptx::NORM_GRADIENT, of_columns),
            }
        })?;
        call.finish(y, &sums, shares)
    })
}

fn by_blocks<T: CudaDType + WithDType + DeviceRepr>(
    call: &NormGradient,
    (held, config): (usize, LaunchConfig),
    operands: [Option<&Tensor>; 4],
) -> Result<(Tensor, Tensor)> {
    let &NormGradient { of, like, eps, is_centred } = call;
    let device = like.device().as_cuda_device()?;
    let (rows, columns, blocks) = (of.rows(), of.columns(), config.grid_dim.0 as usize);
    let variant = format!("{held}_{}", T::DTYPE.as_str());
    with_views::<T, _>(operands, |Views { x, scale, gradient, beside }| {
        let sums = written::<f32>(device, call.sets() * blocks * columns, |_| Ok(()))?;
        let y = written::<T>(device, of.elements(), |y| {
            let (sums, y) = (&sums.as_view(), y.as_view_mut());
            match is_centred {
                true => launch::LayerNormGradient { rows, columns, eps, blocks, x, scale, gradient, beside, sums, y }
                    .launch(device, &variant, ptx::NORM_GRADIENT, config),
                false => launch::RmsNormGradient { rows, columns, eps, blocks, x, scale, gradient, beside, sums, y }
                    .launch(device, &variant, ptx::NORM_GRADIENT, config),
            }
        })?;
        call.finish(y, &sums, blocks)
    })
}
