//! Group norm in one or two launches.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Module, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Groups, Norm};
use crate::cuda::driver::kernels::{address, written};
use crate::cuda::operator::{launched, takes, with_elements, Call, Kernel};
use crate::ops::format::is_channels_last;
use crate::ops::Activation;

/// Group norm. `None` if the kernels do not support the operands: the caller then runs candle's operators, which also report errors.
pub(super) fn group_norm(
    x: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    groups: usize,
    eps: f32,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let &[batch, channels, _, ..] = x.dims() else { return Ok(None) };
    let of_channels = [scale, shift].iter().all(|vector| vector.dims() == [channels]);
    if !of_channels || !takes(x, &[Some(scale), Some(shift)]) || x.dtype() == DType::F64 {
        return Ok(None);
    }
    let shape = [batch, channels, x.dims()[2..].iter().product()];
    let channels_last = is_channels_last(x);
    let arranged = if channels_last { x.permute((0, 2, 3, 1))? } else { x.contiguous()? };
    let start = arranged.layout().start_offset();
    let Some(sizes) = Groups::new(x.dtype(), shape, groups, channels_last, start) else { return Ok(None) };
    // The kernels apply no other activation.
    let (silu, after) = match activation {
        Activation::Silu => (true, Activation::None),
        other => (false, other),
    };
    let norm = Norm { of: sizes, eps, silu };
    let kernel = GroupNorm { norm, scale: scale.contiguous()?, shift: shift.contiguous()? };
    let y = launched(kernel, &arranged, arranged.shape())?;
    let y = if channels_last { y.permute((0, 3, 1, 2))? } else { y };
    after.forward(&y).map(Some)
}

struct GroupNorm {
    norm: Norm,
    scale: Tensor,
    shift: Tensor,
}

impl Kernel for GroupNorm {
    const NAME: &'static str = "group_norm";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { norm, scale, shift } = self;
        let norm = Norm { of: norm.of.at(dtype, address(&x, device))?, ..*norm };
        with_elements([Some(scale), Some(shift)], |[scale, shift]| {
            let (Some(scale), Some(shift)) = (scale, shift) else { bail!("a group norm without scale or shift") };
            let (operands, parts) = ([&x, &scale, &shift], norm.of.parts());
            if parts == 1 {
                return launch::normalise(device, dtype, norm, operands, None, y);
            }
            let moments = written(device, 2 * parts * norm.of.count(), |moments| {
                launch::moments(device, dtype, norm.of, &x, moments)
            })?;
            launch::normalise(device, dtype, norm, operands, Some(&moments.as_view()), y)
        })
    }
}
