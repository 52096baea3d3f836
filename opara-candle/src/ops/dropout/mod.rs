//! Dropout by a counter.

mod config;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, DType, Result, Tensor};

pub use self::config::Dropout;
use super::column_sums::in_sums;
use super::differentiable::differentiable;
use super::own_or;
use super::sample::philox;
use crate::cpu::record::apply;

/// Zeroes a part of the elements of `x`, and divides the others by the part that stays. Whether an element stays depends on seed, site, its
/// place and `step` alone (Philox4x32-10), one number of f64 on the device of `x`: an optimizer's [`step`](crate::optim::Fused::step_number). So no mask
/// is kept for the backward pass, a captured step draws anew at every replay, and a CPU and a GPU draw alike.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Dropout};
/// let (x, step) = (Tensor::ones(1000, DType::F32, &Cpu)?, Tensor::new(&[7f64], &Cpu)?);
/// let y = ops::dropout(&x, Dropout { part: 0.75, seed: 1, site: 0 }, &step)?.to_vec1::<f32>()?;
/// let kept = y.iter().filter(|&&y| y == 4.).count();
/// assert!((200..300).contains(&kept) && y.iter().all(|&y| y == 0. || y == 4.));
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A part outside its limits, a step of another type, and no floats.
pub fn dropout(x: &Tensor, of: Dropout, step: &Tensor) -> Result<Tensor> {
    if !(0. ..1.).contains(&of.part) {
        bail!("a dropout of {} of the elements: it is at least 0, and less than 1", of.part)
    }
    if step.dtype() != DType::F64 || step.elem_count() != 1 || !x.dtype().is_float() {
        bail!("a dropout of {:?} takes one number of f64 as its step, not {:?}", x.dtype(), step)
    }
    apply("dropout", &[x, step], 0, move |t| {
        let dropped =
            move |x: &Tensor, step: &Tensor| own_or(x, || gpu!(cuda::dropout(x, of, step)), || composed(x, of, step));
        differentiable(
            "dropout",
            t,
            |t| Ok((dropped(t[0], t[1])?, Vec::new())),
            move |passed| {
                let [_, step] = passed.operands else { bail!("a dropout without a step") };
                Ok(vec![Some(dropped(passed.gradient, step)?), None])
            },
        )
    })
}

/// The same by numbers that the host draws.
fn composed(x: &Tensor, of: Dropout, step: &Tensor) -> Result<Tensor> {
    let step = step.flatten_all()?.to_vec1::<f64>()?[0] as u32;
    let numel = u32::try_from(x.elem_count()).map_err(candle::Error::wrap)?;
    let stays = (0..numel.div_ceil(4))
        .flat_map(|four| philox([four, 0, of.site, step], of.seed_words()))
        .map(|drawn| u8::from(drawn >= of.below()));
    let stays = Tensor::from_iter(stays.take(numel as usize), x.device())?.reshape(x.shape())?;
    stays.where_cond(&in_sums(x)?.affine(of.factor().into(), 0.)?.to_dtype(x.dtype())?, &x.zeros_like()?)
}
