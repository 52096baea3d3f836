//! The residual stream of a stack: every layer reads it normalised, and adds to it.

use candle::{DType, Module, Result, Tensor, D};
use candle_nn::VarBuilder;
use opara_candle::nn::{rms_norm, Linear, RmsNorm};
use opara_candle::ops::{self, RmsScale};
use opara_candle::scope;

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

    /// The product of what is read, `(batch, seq, out)`. Few rows take one launch, norm and all.
    pub fn read_product(&mut self, norm: &RmsNorm, weight: &Tensor) -> Result<Tensor> {
        if !self.has_few_rows() {
            return ops::linear(&self.read(norm)?, weight, None);
        }
        self.read_few(norm, |sum, norm| ops::norm_linear(sum, norm, weight, None, None))
    }

    /// What an operator that norms by itself makes of the sum.
    pub fn read_few(
        &mut self,
        norm: &RmsNorm,
        product: impl FnOnce(&Tensor, Option<RmsScale>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.settle()?;
        product(&self.sum, Some(norm.scale()))
    }

    /// Adds a product. Few rows take one launch for both.
    pub fn add_product(&mut self, x: &Tensor, product: &Linear) -> Result<()> {
        if !self.has_few_rows() {
            return self.add(product.forward(x)?);
        }
        self.settle()?;
        let _scope = scope(product.name());
        self.sum = ops::norm_linear(x, None, product.weight(), None, Some(&self.sum))?;
        Ok(())
    }

    /// Whether there are so few that products with them are made by a kernel that norms and adds, too.
    pub fn has_few_rows(&self) -> bool {
        const FEW: usize = 8;
        let rows = self.sum.elem_count() / self.sum.dim(D::Minus1).unwrap_or(1).max(1);
        self.sum.device().is_cuda() && rows <= FEW
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(part) = self.pending.take() {
            self.sum = ops::add(&self.sum, &part)?;
        }
        Ok(())
    }

    /// Adds a part.
    pub fn add(&mut self, part: Tensor) -> Result<()> {
        if let Some(before) = self.pending.replace(part) {
            self.sum = ops::add(&self.sum, &before)?;
        }
        Ok(())
    }
}
