//! Optimizers on a GPU: launches of up to [`TENSORS`] tensors.

use std::array::from_fn;

use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{bail, DType, Layout, Result, Storage, Tensor, WithDType};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::launch;
use super::rule::{sums_of, Blend, Rule, Updated, CONTROL};
use crate::cuda::driver::kernels::ptx;
use crate::cuda::operator::tables::{blocks_of, of_blocks, table, views, Blocks, TENSORS};
use crate::cuda::operator::with_elements;

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

/// The types of elements that a launch is of.
const FLOATS: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

/// Writes the sums of squares of all gradients to the room in `sums`, one behind the other.
pub(super) fn square_sums(sums: &mut CudaStorage, to: &Layout, gradients: &[Tensor]) -> Result<()> {
    let mut from = to.start_offset();
    for dtype in FLOATS {
        let of_dtype: Vec<_> = gradients.iter().filter(|g| g.dtype() == dtype && g.elem_count() > 0).collect();
        for some in of_dtype.chunks(TENSORS) {
            from = for_float!(dtype, sums_of_some(sums, from, some))?;
        }
    }
    Ok(())
}

/// Gives the place behind the sums.
fn sums_of_some<T: CudaDType + WithDType + DeviceRepr>(
    sums: &mut CudaStorage,
    from: usize,
    gradients: &[&Tensor],
) -> Result<usize> {
    let device = sums.device.clone();
    let held: Vec<_> = gradients.iter().map(|gradient| gradient.storage_and_layout()).collect();
    let views = views::<T>(&held)?;
    let Blocks { numels, ends, all } = Blocks::of(gradients.iter().copied(), sums_of)?;
    let sums = sums.as_cuda_slice_mut::<f64>()?.slice_mut(from..from + all);
    let of = launch::SquareSums { numels, ends, gradients: table(&views), blocks: all, sums };
    of.launch(&device, T::DTYPE.as_str(), ptx::OPTIMIZER, of_blocks(all))?;
    Ok(from + all)
}

pub(super) fn tick(control: &mut CudaStorage, sums: Option<&CudaStorage>) -> Result<()> {
    let device = control.device.clone();
    let sums = sums.map(|sums| sums.as_cuda_slice::<f64>()).transpose()?.map(|sums| sums.as_view());
    let control = control.as_cuda_slice_mut::<f64>()?.slice_mut(..CONTROL);
    let of = launch::Tick { count: sums.as_ref().map_or(0, |sums| sums.len()), sums: sums.as_ref(), control };
    of.launch(&device, "f64", ptx::OPTIMIZER, of_blocks(1))
}

/// Updates all values.
pub(super) fn update(rule: Rule, all: &[Updated], control: &Tensor) -> Result<()> {
    for dtype in FLOATS {
        let of_dtype = all.iter().filter(|of| of.value.dtype() == dtype && of.value.elem_count() > 0);
        for some in of_dtype.collect::<Vec<_>>().chunks(TENSORS) {
            for_float!(dtype, update_some(rule, some, control))?;
        }
    }
    Ok(())
}

fn update_some<T: CudaDType + WithDType + DeviceRepr>(rule: Rule, some: &[&Updated], control: &Tensor) -> Result<()> {
    let device = &control.device().as_cuda_device()?.clone();
    let Blocks { numels, ends, all } = Blocks::of(some.iter().map(|of| of.value), blocks_of::<T>)?;
    let (variant, code, config) = (T::DTYPE.as_str(), ptx::OPTIMIZER, of_blocks(all));
    let held: Vec<_> = some.iter().map(|of| of.gradient.storage_and_layout()).collect();
    let of_gradients = views::<T>(&held)?;
    let held: Vec<_> = some.iter().map(|of| of.value.storage_and_layout()).collect();
    let of_values = views::<T>(&held)?;
    let held: Vec<_> = some.iter().map(|of| of.by.moments.lock()).collect();
    let of_moments = held.iter().map(|moments| match &**moments {
        Storage::Cuda(moments) => Ok(moments.as_cuda_slice::<T>()?.as_view()),
        _ => bail!("the optimizer's numbers are on another device"),
    });
    let of_moments = of_moments.collect::<Result<Vec<_>>>()?;
    let (gradients, values, moments) = (table(&of_gradients), table(&of_values), table(&of_moments));
    let decays = from_fn(|at| some.get(at).map_or(0., |of| of.by.decay));
    let rates = from_fn(|at| some.get(at).map_or(0., |of| of.by.rate));
    with_elements([Some(control)], |[control]| {
        let Some(control) = &control else { bail!("an optimizer without numbers") };
        match rule {
            Rule::Descent => {
                let of = launch::Descent { numels, ends, decays, rates, control, gradients, values };
                of.launch(device, variant, code, config)
            }
            Rule::Momentum { momentum, is_nesterov } => {
                let is_nesterov = i32::from(is_nesterov);
                let of = launch::Momentum {
                    is_nesterov,
                    momentum,
                    numels,
                    ends,
                    decays,
                    rates,
                    control,
                    gradients,
                    values,
                    moments,
                };
                of.launch(device, variant, code, config)
            }
            Rule::Adam { beta1, beta2, eps, is_decoupled } => {
                let is_decoupled = i32::from(is_decoupled);
                let of = launch::Adam {
                    is_decoupled,
                    beta1,
                    beta2,
                    eps,
                    numels,
                    ends,
                    decays,
                    rates,
                    control,
                    gradients,
                    values,
                    moments,
                };
                of.launch(device, variant, code, config)
            }
            Rule::Lion { beta1, beta2 } => {
                let of =
                    launch::Lion { beta1, beta2, numels, ends, decays, rates, control, gradients, values, moments };
                of.launch(device, variant, code, config)
            }
        }
    })
}

/// Blends pairs of the tensor that is changed, and the other.
pub(super) fn blend(of: Blend, pairs: &[(&Tensor, &Tensor)], control: &Tensor) -> Result<()> {
    for dtype in FLOATS {
        let of_dtype = pairs.iter().filter(|(to, _)| to.dtype() == dtype && to.elem_count() > 0);
        for some in of_dtype.collect::<Vec<_>>().chunks(TENSORS) {
            for_float!(dtype, blend_some(of, some, control))?;
        }
    }
    Ok(())
}

fn blend_some<T: CudaDType + WithDType + DeviceRepr>(
    of: Blend,
    some: &[&(&Tensor, &Tensor)],
    control: &Tensor,
) -> Result<()> {
    let device = &control.device().as_cuda_device()?.clone();
    let Blocks { numels, ends, all } = Blocks::of(some.iter().map(|(to, _)| *to), blocks_of::<T>)?;
    let held: Vec<_> = some.iter().map(|(_, from)| from.storage_and_layout()).collect();
    let of_from = views::<T>(&held)?;
    let held: Vec<_> = some.iter().map(|(to, _)| to.storage_and_layout()).collect();
    let of_to = views::<T>(&held)?;
    let (from, to) = (table(&of_from), table(&of_to));
    let (is_average, kept) = match of {
        Blend::Sum => (0, 1.),
        Blend::Average(kept) => (1, kept),
    };
    with_elements([Some(control)], |[control]| {
        let Some(control) = &control else { bail!("an optimizer without numbers") };
        let of = launch::Blend { is_average, kept, numels, ends, control, from, to };
        of.launch(device, T::DTYPE.as_str(), ptx::OPTIMIZER, of_blocks(all))
    })
}

/// Rounds values of f32 to copies: pairs of copy and value.
pub(super) fn round(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let of_dtype = pairs.iter().filter(|(copy, _)| copy.dtype() == dtype && copy.elem_count() > 0);
        for some in of_dtype.collect::<Vec<_>>().chunks(TENSORS) {
            match dtype {
                DType::F16 => round_some::<f16>(some)?,
                _ => round_some::<bf16>(some)?,
            }
        }
    }
    Ok(())
}

fn round_some<T: CudaDType + WithDType + DeviceRepr>(some: &[&(&Tensor, &Tensor)]) -> Result<()> {
    let [(copy, _), ..] = some else { return Ok(()) };
    let device = &copy.device().as_cuda_device()?.clone();
    let Blocks { numels, ends, all } = Blocks::of(some.iter().map(|(copy, _)| *copy), blocks_of::<f32>)?;
    let held: Vec<_> = some.iter().map(|(_, value)| value.storage_and_layout()).collect();
    let values = views::<f32>(&held)?;
    let held: Vec<_> = some.iter().map(|(copy, _)| copy.storage_and_layout()).collect();
    let copies = views::<T>(&held)?;
    let of = launch::Round { numels, ends, values: table(&values), copies: table(&copies) };
    of.launch(device, T::DTYPE.as_str(), ptx::OPTIMIZER, of_blocks(all))
}
