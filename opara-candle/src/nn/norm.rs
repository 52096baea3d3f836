//! Layer norm and RMS norm.

use candle::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::weights::name_of;
use crate::ops::{self, RmsScale};
use crate::trace::scope::scope;

/// Layer normalisation over the last dimension; made by [`layer_norm`].
#[derive(Debug, Clone)]
pub struct LayerNorm {
    name: String,
    scale: Tensor,
    shift: Tensor,
    eps: f64,
}

/// Loads `weight` and `bias` of shape `(size)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let norm = nn::layer_norm(64, 1e-12, VarBuilder::zeros(DType::F32, &Cpu))?;
/// let x = Tensor::zeros((2, 10, 64), DType::F32, &Cpu)?;
/// assert_eq!(norm.forward(&x)?.dims(), [2, 10, 64]);
/// assert_eq!(norm.forward_add(&x, None, &x)?.dims(), [2, 10, 64]); // of x + x
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn layer_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    let scale = vb.get_with_hints(size, "weight", Init::Const(1.))?;
    let shift = vb.get_with_hints(size, "bias", Init::Const(0.))?;
    Ok(LayerNorm { name: name_of(&vb), scale, shift, eps })
}

impl LayerNorm {
    /// The layer norm of `x + bias + residual`, in one launch: the end of each half of a Transformer layer.
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_add(&self, x: &Tensor, bias: Option<&Tensor>, residual: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::add_layer_norm(x, bias, residual, &self.scale, &self.shift, self.eps as f32)
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::layer_norm(x, &self.scale, &self.shift, self.eps as f32)
    }
}

/// Root-mean-square normalisation over the last dimension; made by [`rms_norm`].
#[derive(Debug, Clone)]
pub struct RmsNorm {
    name: String,
    scale: Tensor,
    eps: f64,
}

/// Loads `weight` of shape `(size)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let norm = nn::rms_norm(64, 1e-6, VarBuilder::zeros(DType::F32, &Cpu))?;
/// assert_eq!(norm.forward(&Tensor::zeros((2, 10, 64), DType::F32, &Cpu)?)?.dims(), [2, 10, 64]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm::new(name_of(&vb), vb.get_with_hints(size, "weight", Init::Const(1.))?, eps))
}

impl RmsNorm {
    /// A layer with this scale, whose size is the last dimension. `name` labels its launches.
    pub fn new(name: impl Into<String>, scale: Tensor, eps: f64) -> Self {
        Self { name: name.into(), scale, eps }
    }

    /// What products that normalise their operand take: the scale, and what is added to the mean square.
    pub fn scale(&self) -> RmsScale<'_> {
        (&self.scale, self.eps as f32)
    }

    /// `x + residual`, and its RMS norm, in one launch.
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let _scope = scope(&self.name);
        ops::add_rms_norm(x, residual, &self.scale, self.eps as f32)
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::rms_norm(x, &self.scale, self.eps as f32)
    }
}
