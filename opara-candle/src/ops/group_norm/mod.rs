//! Group norm.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Module, Result, Tensor};
use candle_nn::GroupNorm;

use super::differentiable::recomputed;
use super::{own_or, Activation};
use crate::cpu::record::apply;

/// Group norm of `x`, `(batch, channels, ...)`: each of so many groups of neighbouring channels is normalised by its own mean and
/// variance, then each channel is scaled and shifted, and the activation follows.
///
/// On a GPU it is one launch, or two for large images, with SiLU as part of them; images keep their memory layout. Nothing is
/// rounded in between.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Activation};
/// let x = Tensor::randn(0f32, 1., (2, 6, 8, 8), &Cpu)?; // (batch, channels, h, w)
/// let (scale, shift) = (Tensor::ones(6, DType::F32, &Cpu)?, Tensor::zeros(6, DType::F32, &Cpu)?);
/// assert_eq!(ops::group_norm(&x, &scale, &shift, 3, 1e-5, Activation::Silu)?.dims(), [2, 6, 8, 8]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, or channels that are not a multiple of the groups.
pub fn group_norm(
    x: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    groups: usize,
    eps: f32,
    activation: Activation,
) -> Result<Tensor> {
    apply("group_norm", &[x, scale, shift], 8 * x.elem_count() as u64, move |t| {
        let by_candle = move |t: &[&Tensor]| composed(t[0], t[1], t[2], groups, eps, activation);
        let forward = |t: &[&Tensor]| {
            let own = || gpu!(cuda::group_norm(t[0], t[1], t[2], groups, eps, activation));
            own_or(t[0], own, || by_candle(t))
        };
        recomputed("group_norm", t, forward, by_candle)
    })
}

/// The same by candle's operators.
fn composed(
    x: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    groups: usize,
    eps: f32,
    activation: Activation,
) -> Result<Tensor> {
    let channels = x.dim(1)?;
    if groups == 0 || scale.dims() != [channels] || shift.dims() != [channels] {
        candle::bail!("{:?} and {:?} do not scale and shift {channels} channels", scale.dims(), shift.dims())
    }
    let norm = GroupNorm::new(scale.clone(), shift.clone(), channels, groups, eps.into())?;
    activation.forward(&norm.forward(x)?)
}
