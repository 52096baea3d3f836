//! Gradients of depthwise convolutions on a GPU.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::gradient_launch::{self as launch, shares, SIDES};
use crate::cuda::driver::kernels::{blocks, ptx, written};
use crate::cuda::operator::{begin_wide, tensor_of, with_elements};
use crate::ops::column_sums::cuda::totals;
use crate::ops::ConvConfig;

/// A depthwise convolution of images whose channels lie beside each other.
pub(super) struct Depthwise<'a> {
    /// `(batch, h, w, channels)`.
    pub x: &'a Tensor,
    /// `(kh, kw, channels)`.
    pub weight: &'a Tensor,
    /// Of the result, `(batch, oh, ow, channels)`.
    pub gradient: &'a Tensor,
    pub config: &'a ConvConfig,
}

impl Depthwise<'_> {
    /// The gradients of images, `(batch, h, w, channels)`, and weight, `(channels, 1, kh, kw)`, as far as they are needed. `None` if there
    /// are no kernels for the operands.
    pub fn gradients(&self, needed: [bool; 2]) -> Result<Option<[Option<Tensor>; 2]>> {
        let (kh, kw, _) = self.weight.dims3()?;
        let config = self.config;
        let is_known = kh == kw && SIDES.contains(&kh) && config.padding.is_symmetric();
        if !is_known || self.x.elem_count() == 0 || self.gradient.elem_count() == 0 {
            return Ok(None);
        }
        for_kernel_float!(self.x.dtype(), gradients_of(self, needed)).transpose()
    }
}

fn gradients_of<T: CudaDType + WithDType + DeviceRepr>(
    of: &Depthwise,
    needed: [bool; 2],
) -> Result<[Option<Tensor>; 2]> {
    let input = needed[0].then(|| input_gradient::<T>(of)).transpose()?;
    Ok([input, needed[1].then(|| weight_gradient::<T>(of)).transpose()?])
}

fn input_gradient<T: CudaDType + WithDType + DeviceRepr>(of: &Depthwise) -> Result<Tensor> {
    let device = of.x.device().as_cuda_device()?;
    let ((batch, h, w, channels), (_, oh, ow, _)) = (of.x.dims4()?, of.gradient.dims4()?);
    let (kh, kw, _) = of.weight.dims3()?;
    let ConvConfig { stride, dilation, padding, .. } = *of.config;
    let numel = of.x.elem_count();
    let by = if channels % 4 == 0 && begin_wide([of.gradient, of.weight])? { 4 } else { 1 };
    let y = with_elements::<T, _, 2>([Some(of.gradient), Some(of.weight)], |operands| {
        let [Some(gradient), Some(weight)] = &operands else { bail!("a convolution without an operand") };
        written::<T>(device, numel, |y| {
            launch::InputGradient {
                batch,
                numel,
                channels,
                from: [h, w],
                to: [oh, ow],
                kernel: [kh, kw],
                stride,
                dilation,
                before: [padding.top, padding.left],
                gradient,
                weight,
                y: y.as_view_mut(),
            }
            .launch(
                device,
                &format!("by{by}_{}", T::DTYPE.as_str()),
                ptx::DEPTHWISE_GRADIENT,
                blocks(numel / by),
            )
        })
    })?;
    tensor_of(y, device, of.x.shape())
}

fn weight_gradient<T: CudaDType + WithDType + DeviceRepr>(of: &Depthwise) -> Result<Tensor> {
    let device = of.x.device().as_cuda_device()?;
    let ((batch, h, w, channels), (_, oh, ow, _)) = (of.x.dims4()?, of.gradient.dims4()?);
    let (side, _, _) = of.weight.dims3()?;
    let ConvConfig { stride, dilation, padding, .. } = *of.config;
    let (taps, shares) = (side * side, shares(batch * oh * ow, channels));
    let sums = with_elements::<T, _, 2>([Some(of.gradient), Some(of.x)], |operands| {
        let [Some(gradient), Some(x)] = &operands else { bail!("a convolution without an operand") };
        written::<f32>(device, shares.count * channels * taps, |sums| {
            launch::WeightGradient {
                batch,
                channels,
                share: shares.rows,
                from: [h, w],
                to: [oh, ow],
                stride,
                dilation,
                before: [padding.top, padding.left],
                taps,
                shares: shares.count,
                gradient,
                x,
                sums: sums.as_view_mut(),
            }
            .launch(
                device,
                &format!("{side}_{}", T::DTYPE.as_str()),
                ptx::DEPTHWISE_GRADIENT,
                shares.config(channels),
            )
        })
    })?;
    let y = totals::<T>(device, &sums.as_view(), 1, shares.count, channels * taps)?;
    tensor_of(y, device, (channels, 1, side, side))
}

#[cfg(test)]
mod tests {
    use candle::{DType, Device, Var};

    use super::*;
    use crate::ops::test_numbers::numbers;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn gradients_of_depthwise_convolutions_are_those_of_candle() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let numbers = |seed: usize, shape: &[usize]| numbers(seed, shape, DType::F64);
        for (channels, side, stride, padding, [h, w]) in [
            (36, 3, 1, 1, [9, 7]),
            (64, 3, 2, 1, [8, 8]),
            (33, 5, 2, 2, [10, 10]),
            (8, 7, 1, 3, [7, 9]),
            (5, 3, 1, 0, [4, 5]),
        ] {
            let (x, weight) = (numbers(1, &[3, channels, h, w])?, numbers(2, &[channels, 1, side, side])?);
            let (x, weight) = (Var::from_tensor(&x)?, Var::from_tensor(&weight)?);
            let y = x.conv2d(&weight, padding, stride, 1, channels)?;
            let gradient = numbers(3, y.dims())?;
            let expected = (y * &gradient)?.sum_all()?.backward()?;
            for (dtype, most) in [(DType::F32, 1e-5), (DType::BF16, 2e-2)] {
                let on_gpu = |t: &Tensor, order: &[usize]| {
                    t.detach().to_dtype(dtype)?.to_device(&device)?.permute(order)?.contiguous()
                };
                let x_of = on_gpu(&x, &[0, 2, 3, 1])?;
                let of = Depthwise {
                    x: &x_of,
                    weight: &on_gpu(&weight.squeeze(1)?, &[1, 2, 0])?,
                    gradient: &on_gpu(&gradient, &[0, 2, 3, 1])?,
                    config: &ConvConfig::default().stride(stride).padding(padding).groups(channels),
                };
                let Some([Some(of_x), Some(of_weight)]) = of.gradients([true; 2])? else { bail!("there is a kernel") };
                for (got, variable) in [(of_x.permute((0, 3, 1, 2))?, &x), (of_weight, &weight)] {
                    let expected = expected.get(variable).expect("it is reached").flatten_all()?;
                    let got = got.contiguous()?.flatten_all()?.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                    let size = expected.abs()?.max(0)?.to_scalar::<f64>()?;
                    let error = (got - expected)?.abs()?.max(0)?.to_scalar::<f64>()?;
                    assert!(error <= most * size, "{dtype:?}, {channels} of {side}: off by {error:.1e} of {size}");
                }
            }
        }
        Ok(())
    }
}
