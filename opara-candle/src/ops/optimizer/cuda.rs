//! Optimizers on a GPU.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{bail, DType, Layout, Result, Storage, Tensor, WithDType};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::launch::{self, blocks_of_256};
use super::rule::{Rule, Update, CONTROL, SUMS};
use crate::cuda::driver::kernels::{ptx, wide_blocks};
use crate::cuda::operator::{elements, with_elements};

/// Calls a generic function for the element type of a float.
macro_rules! for_float {
    ($dtype:expr, $run:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F16 => $run::<f16>($($argument),*),
            DType::BF16 => $run::<bf16>($($argument),*),
            DType::F32 => $run::<f32>($($argument),*),
            DType::F64 => $run::<f64>($($argument),*),
            other => bail!("an optimizer updates floats, not {other:?}"),
        }
    };
}

pub(super) fn square_sums(sums: &mut CudaStorage, to: &Layout, gradient: &CudaStorage, at: &Layout) -> Result<()> {
    fn run<T: CudaDType + WithDType + DeviceRepr>(
        sums: &mut CudaStorage,
        to: &Layout,
        gradient: &CudaStorage,
        at: &Layout,
    ) -> Result<()> {
        let (device, numel) = (sums.device.clone(), counted(at)?);
        let gradient = &elements::<T>(gradient, at)?;
        let sums = sums.as_cuda_slice_mut::<f64>()?.slice_mut(to.start_offset()..to.start_offset() + SUMS);
        let of = launch::SquareSums { numel, gradient, sums };
        of.launch(&device, T::DTYPE.as_str(), ptx::OPTIMIZER, blocks_of_256(SUMS))
    }
    for_float!(gradient.dtype(), run(sums, to, gradient, at))
}

pub(super) fn tick(control: &mut CudaStorage, sums: Option<&CudaStorage>) -> Result<()> {
    let device = control.device.clone();
    let sums = sums.map(|sums| sums.as_cuda_slice::<f64>()).transpose()?.map(|sums| sums.as_view());
    let control = control.as_cuda_slice_mut::<f64>()?.slice_mut(..CONTROL);
    let of = launch::Tick { count: sums.as_ref().map_or(0, |sums| sums.len()), sums: sums.as_ref(), control };
    of.launch(&device, "f64", ptx::OPTIMIZER, blocks_of_256(1))
}

pub(super) fn update(
    of: &Update,
    control: &Tensor,
    (value, to): (&mut CudaStorage, &Layout),
    (gradient, from): (&CudaStorage, &Layout),
) -> Result<()> {
    fn run<T: CudaDType + WithDType + DeviceRepr>(
        of: &Update,
        control: &Tensor,
        (value, to): (&mut CudaStorage, &Layout),
        (gradient, from): (&CudaStorage, &Layout),
    ) -> Result<()> {
        let (device, numel) = (value.device.clone(), counted(to)?);
        let (variant, code, config) = (T::DTYPE.as_str(), ptx::OPTIMIZER, wide_blocks(numel, T::DTYPE));
        if numel == 0 {
            return Ok(());
        }
        let gradient = &elements::<T>(gradient, from)?;
        let value = value.as_cuda_slice_mut::<T>()?.slice_mut(to.start_offset()..to.start_offset() + numel);
        let moments = of.moments.lock();
        let Storage::Cuda(moments) = &*moments else { bail!("the optimizer's numbers are on another device") };
        let moments = &moments.as_cuda_slice::<T>()?.as_view();
        let (decay, rate) = (of.decay, of.rate);
        with_elements([Some(control)], |[control]| {
            let Some(control) = &control else { bail!("an optimizer without numbers") };
            match of.rule {
                Rule::Descent => {
                    let of = launch::Descent { numel, decay, rate, control, gradient, value };
                    of.launch(&device, variant, code, config)
                }
                Rule::Momentum { momentum, is_nesterov } => {
                    let is_nesterov = i32::from(is_nesterov);
                    let of = launch::Momentum {
                        numel,
                        is_nesterov,
                        momentum,
                        decay,
                        rate,
                        control,
                        gradient,
                        value,
                        moments,
                    };
                    of.launch(&device, variant, code, config)
                }
                Rule::Adam { beta1, beta2, eps, is_decoupled } => {
                    let is_decoupled = i32::from(is_decoupled);
                    let of = launch::Adam {
                        numel,
                        is_decoupled,
                        beta1,
                        beta2,
                        eps,
                        decay,
                        rate,
                        control,
                        gradient,
                        value,
                        moments,
                    };
                    of.launch(&device, variant, code, config)
                }
                Rule::Lion { beta1, beta2 } => {
                    let of = launch::Lion { numel, beta1, beta2, decay, rate, control, gradient, value, moments };
                    of.launch(&device, variant, code, config)
                }
            }
        })
    }
    for_float!(value.dtype(), run(of, control, (value, to), (gradient, from)))
}

/// # Errors
/// More elements than 31 bits count.
fn counted(layout: &Layout) -> Result<usize> {
    let numel = layout.shape().elem_count();
    if numel > i32::MAX as usize {
        bail!("{numel} elements are more than the kernel counts")
    }
    Ok(numel)
}
