//! Gradients of norms on a GPU, in two launches.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::gradient_launch::{self as launch, launch_of};
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{rows_of, tensor_of, with_elements};
use crate::ops::column_sums::cuda::totals;

/// The gradients of `x`, and of scale and shift one behind the other; an RMS norm has no shift. `None` if the kernel does not support the
/// operands.
pub(super) fn gradients(
    x: &Tensor,
    scale: &Tensor,
    gradient: &Tensor,
    eps: f32,
    is_centred: bool,
) -> Result<Option<(Tensor, Tensor)>> {
    let Some(of) = rows_of(x, &[Some(scale)]).filter(|_| x.elem_count() > 0) else { return Ok(None) };
    let Some((held, config)) = launch_of(of, wide(x.dtype())) else { return Ok(None) };
    if gradient.shape() != x.shape() || gradient.dtype() != x.dtype() {
        return Ok(None);
    }
    let call = NormGradient { of, held, config, eps, is_centred };
    for_kernel_float!(x.dtype(), run(&call, [&x.contiguous()?, &scale.contiguous()?, &gradient.contiguous()?]))
        .transpose()
}

struct NormGradient {
    of: Rows,
    held: usize,
    config: LaunchConfig,
    eps: f32,
    is_centred: bool,
}

fn run<T: CudaDType + WithDType + DeviceRepr>(call: &NormGradient, operands: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
    let &NormGradient { of, held, config, eps, is_centred } = call;
    let device = operands[0].device().as_cuda_device()?;
    let (rows, columns, blocks) = (of.rows(), of.columns(), config.grid_dim.0 as usize);
    let (sets, variant) = (1 + usize::from(is_centred), format!("{held}_{}", T::DTYPE.as_str()));
    let sums = written::<f32>(device, sets * blocks * columns, |_| Ok(()))?;
    let y =
        with_elements::<T, _, 3>(operands.map(Some), |operands| {
            let [Some(x), Some(scale), Some(gradient)] = &operands else { bail!("a norm without an operand") };
            written::<T>(device, of.elements(), |y| {
                let (sums, y) = (&sums.as_view(), y.as_view_mut());
                match is_centred {
                    true => launch::LayerNormGradient { rows, columns, eps, blocks, x, scale, gradient, sums, y }
                        .launch(device, &variant, ptx::NORM_GRADIENT, config),
                    false => launch::RmsNormGradient { rows, columns, eps, blocks, x, scale, gradient, sums, y }
                        .launch(device, &variant, ptx::NORM_GRADIENT, config),
                }
            })
        })?;
    let of_vectors = totals::<T>(device, &sums.as_view(), sets, blocks, columns)?;
    Ok((tensor_of(y, device, operands[0].shape())?, tensor_of(of_vectors, device, sets * columns)?))
}
