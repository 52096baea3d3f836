//! Batch norm at inference.

use candle::{Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::weights::on_host;

/// A batch norm at inference: `scale * x + shift` for each channel. [`conv2d_norm`](super::conv2d_norm) folds it into a convolution.
/// Made by [`batch_norm`].
#[derive(Debug, Clone)]
pub struct BatchNorm {
    pub(super) scale: Tensor,
    pub(super) shift: Tensor,
}

/// Loads `weight`, `bias`, `running_mean` and `running_var` of shape `(channels)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn batch_norm(channels: usize, eps: f64, vb: VarBuilder) -> Result<BatchNorm> {
    let vb = on_host(vb);
    let get = |name, init| vb.get_with_hints(channels, name, Init::Const(init));
    let (weight, bias) = (get("weight", 1.)?, get("bias", 0.)?);
    let (mean, variance) = (get("running_mean", 0.)?, get("running_var", 1.)?);
    let scale = (weight / (variance + eps)?.sqrt()?)?;
    let shift = (bias - (mean * &scale)?)?;
    Ok(BatchNorm { scale, shift })
}

impl BatchNorm {
    /// `len` channels from `start` on, for one of several convolutions that share a batch norm.
    ///
    /// # Errors
    /// Channels out of range.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { scale: self.scale.narrow(0, start, len)?, shift: self.shift.narrow(0, start, len)? })
    }
}
