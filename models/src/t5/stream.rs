//! The sum that runs through a stack: every part reads it normalised, and adds to it.

use candle::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{rms_norm, RmsNorm};
use opara_candle::ops;

use super::Config;

/// What the sum is multiplied with.
///
/// It outgrows f16 in trained models. Every reader normalises it first, so its size does not matter: in f16 all that is
/// added to it is made smaller by a power of two, which costs no precision and no time.
pub(super) fn stream_scale(dtype: DType) -> f64 {
    if dtype == DType::F16 {
        1. / 64.
    } else {
        1.
    }
}

/// `weight` as it has to be to add to the stream.
pub(super) fn onto_stream(weight: Tensor) -> Result<Tensor> {
    match stream_scale(weight.dtype()) {
        1. => Ok(weight),
        scale => weight * scale,
    }
}

/// Normalises what it reads from the stream.
pub(super) fn stream_norm(config: &Config, vb: VarBuilder) -> Result<RmsNorm> {
    let eps = config.layer_norm_epsilon * stream_scale(vb.dtype()).powi(2);
    rms_norm(config.d_model, eps, vb)
}

/// The sum, and what the next reader adds to it: that is one launch with its norm.
pub(super) struct Stream {
    sum: Tensor,
    pending: Option<Tensor>,
}

impl Stream {
    /// The sum of the embeddings alone, `(batch, seq, d_model)`.
    pub fn new(sum: Tensor) -> Self {
        Self { sum, pending: None }
    }

    /// The sum, normalised.
    pub fn read(&mut self, norm: &RmsNorm) -> Result<Tensor> {
        let Some(part) = self.pending.take() else { return norm.forward(&self.sum) };
        let (sum, normed) = norm.forward_add(&self.sum, &part)?;
        self.sum = sum;
        Ok(normed)
    }

    /// Adds a part.
    pub fn add(&mut self, part: Tensor) -> Result<()> {
        if let Some(before) = self.pending.replace(part) {
            self.sum = ops::add(&self.sum, &before)?;
        }
        Ok(())
    }
}
