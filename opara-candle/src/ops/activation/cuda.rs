//! Bias and activation in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch;
use crate::activation::Activation;
use crate::cuda::driver::kernels::{ptx, wide_blocks, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{launched, rows_of, takes, tensor_of, with_elements, Call, Kernel};

/// `activation(x + bias)` in one kernel. `None` if the kernel does not support the operands: the caller then runs
/// candle's operators, which also report errors.
pub(super) fn bias_act(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(x, &[bias]).filter(Rows::are_countable) else { return Ok(None) };
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    let bias = bias.map(Tensor::contiguous).transpose()?;
    launched(BiasAct { rows, bias, activation }, &x.contiguous()?, x.shape()).map(Some)
}

struct BiasAct {
    rows: Rows,
    bias: Option<Tensor>,
    activation: Activation,
}

impl Kernel for BiasAct {
    const NAME: &'static str = "bias_act";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let (numel, columns, activation) = (self.rows.elements(), self.rows.columns(), self.activation.code());
        let config = wide_blocks(numel, dtype);
        with_elements([self.bias.as_ref()], |[bias]| {
            launch::BiasAct { numel, columns, activation, x: &x, bias: bias.as_ref(), y: y.as_view_mut() }.launch(
                device,
                dtype.as_str(),
                ptx::ACTIVATION,
                config,
            )
        })
    }
}

/// The gradient before an activation of `x`. `None` if the kernel does not support the operands.
pub(super) fn activation_gradient(x: &Tensor, gradient: &Tensor, activation: Activation) -> Result<Option<Tensor>> {
    let is_countable = (1..=i32::MAX as usize).contains(&x.elem_count());
    if !takes(x, &[Some(gradient)]) || gradient.shape() != x.shape() || !is_countable {
        return Ok(None);
    }
    for_kernel_float!(x.dtype(), slope(&x.contiguous()?, &gradient.contiguous()?, activation)).transpose()
}

fn slope<T: CudaDType + WithDType + DeviceRepr>(
    x: &Tensor,
    gradient: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let (device, numel) = (x.device().as_cuda_device()?, x.elem_count());
    let y =
        with_elements::<T, _, 2>([Some(x), Some(gradient)], |operands| {
            let [Some(x), Some(gradient)] = &operands else { bail!("an activation without an operand") };
            written::<T>(device, numel, |y| {
                launch::ActivationSlope { numel, activation: activation.code(), x, gradient, y: y.as_view_mut() }
                    .launch(device, T::DTYPE.as_str(), ptx::ACTIVATION, wide_blocks(numel, T::DTYPE))
            })
        })?;
    tensor_of(y, device, x.shape())
}
