//! The residual stream of a stack: every layer reads it normalised, and adds to it.

use candle::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{rms_norm, RmsNorm};
use opara_candle::ops;

use super::Config;

/// The factor by which the residual stream is scaled.
///
/// The stream outgrows f16 in trained models. Every reader normalises it first, so its scale does not matter: in f16
/// everything that is added to it is scaled down by a power of two, which costs no precision and no time.
pub(super) fn stream_scale(dtype: DType) -> f64 {
    if dtype == DType::F16 {
        1. / 64.
    } else {
        1.
    }
}

/// Scales a weight whose products are added to the stream.
pub(super) fn onto_stream(weight: Tensor) -> Result<Tensor> {
    match stream_scale(weight.dtype()) {
        1. => Ok(weight),
        scale => weight * scale,
    }
}

/// The norm of a layer's input, with epsilon scaled like the stream.
pub(super) fn stream_norm(config: &Config, vb: VarBuilder) -> Result<RmsNorm> {
    let eps = config.layer_norm_epsilon * stream_scale(vb.dtype()).powi(2);
    rms_norm(config.d_model, eps, vb)
}

/// The residual stream: a sum, and a part that the next reader adds to it in the same launch as its norm.
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
