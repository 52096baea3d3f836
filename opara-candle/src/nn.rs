//! Layers over [`ops`], with candle-nn's names, shapes and constructors.

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::ops::{self, Activation, ConvConfig};
use crate::trace::scope::scope;

/// The last part of a variable builder's path, which labels what the layer launches.
fn name_of(vb: &VarBuilder) -> String {
    vb.prefix().rsplit('.').next().unwrap_or_default().to_string()
}

/// `x · weightᵀ + bias`; see [`linear`].
#[derive(Debug, Clone)]
pub struct Linear {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
}

/// Loads `weight` of shape `(out_dim, in_dim)` and `bias` of shape `(out_dim)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let layer = nn::linear(16, 32, VarBuilder::zeros(DType::F32, &Cpu))?;
/// let x = Tensor::zeros((2, 10, 16), DType::F32, &Cpu)?; // (.., in_dim)
/// assert_eq!(layer.forward(&x)?.dims(), [2, 10, 32]);
/// assert_eq!(layer.forward_act(&x, ops::Activation::Gelu)?.dims(), [2, 10, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let bias = Some(vb.get_with_hints(out_dim, "bias", Init::Const(0.))?);
    Ok(Linear { bias, ..linear_no_bias(in_dim, out_dim, vb)? })
}

/// Loads `weight` of shape `(out_dim, in_dim)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    Ok(Linear { name: name_of(&vb), weight, bias: None })
}

impl Linear {
    /// Of tensors at hand: `weight` of shape `(out_dim, in_dim)` and `bias` of shape `(out_dim)`. `name` labels what the
    /// layer launches.
    pub fn new(name: impl Into<String>, weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { name: name.into(), weight, bias }
    }

    /// `(out_dim, in_dim)`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// `(out_dim)`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// With `activation` after it, in one launch with the bias.
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_act(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::linear_act(x, &self.weight, self.bias.as_ref(), activation)
    }

    /// The product alone, where what follows adds the bias: see [`LayerNorm::forward_add`].
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_no_bias(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::linear(x, &self.weight, None)
    }

    /// The result times `scale`, split into heads: `(batch, heads, seq, out_dim / heads)` of `(batch, seq, in_dim)`.
    ///
    /// # Errors
    /// Shapes that do not agree, or heads that do not divide `out_dim`.
    pub fn forward_heads(&self, x: &Tensor, heads: usize, scale: f64) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::split_heads(&ops::linear(x, &self.weight, None)?, self.bias.as_ref(), heads, scale)
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::linear(x, &self.weight, self.bias.as_ref())
    }
}

/// A table of rows; see [`embedding`].
#[derive(Debug, Clone)]
pub struct Embedding {
    name: String,
    table: Tensor,
}

/// Loads `weight` of shape `(rows, hidden)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let table = nn::embedding(100, 8, VarBuilder::zeros(DType::F32, &Cpu))?;
/// assert_eq!(table.forward(&Tensor::new(&[[1u32, 2, 3]], &Cpu)?)?.dims(), [1, 3, 8]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn embedding(rows: usize, hidden: usize, vb: VarBuilder) -> Result<Embedding> {
    let table = vb.get_with_hints((rows, hidden), "weight", Init::Randn { mean: 0., stdev: 1. })?;
    Ok(Embedding { name: name_of(&vb), table })
}

impl Module for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::embedding(&self.table, ids)
    }
}

/// Layer normalisation over the last dimension; see [`layer_norm`].
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
    /// Of `x + bias + residual`, in one launch: the end of each half of a Transformer's layer.
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

/// Root-mean-square normalisation over the last dimension; see [`rms_norm`].
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
    /// Of a scale at hand, as long as the last dimension. `name` labels what the layer launches.
    pub fn new(name: impl Into<String>, scale: Tensor, eps: f64) -> Self {
        Self { name: name.into(), scale, eps }
    }
}

impl RmsNorm {
    /// `x + residual`, and that normalised, in one launch.
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

/// Two-dimensional convolution with bias and activation; see [`conv2d`].
#[derive(Debug, Clone)]
pub struct Conv2d {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
    config: ConvConfig,
}

/// Loads `weight` of shape `(out, in / groups, kernel.0, kernel.1)` and `bias` of shape `(out)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn conv2d(input: usize, out: usize, kernel: (usize, usize), config: ConvConfig, vb: VarBuilder) -> Result<Conv2d> {
    let bias = Some(vb.get_with_hints(out, "bias", Init::Const(0.))?);
    Ok(Conv2d { bias, ..conv2d_no_bias(input, out, kernel, config, vb)? })
}

/// Loads `weight` of shape `(out, in / groups, kernel.0, kernel.1)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn conv2d_no_bias(
    input: usize,
    out: usize,
    kernel: (usize, usize),
    config: ConvConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let shape = (out, input / config.groups.max(1), kernel.0, kernel.1);
    let weight = vb.get_with_hints(shape, "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let weight = ops::conv2d_weight(&weight, config.groups)?;
    Ok(Conv2d { name: name_of(&vb), weight, bias: None, config })
}

/// A convolution without bias whose result a batch normalisation follows, as one convolution with bias: `weight` of shape
/// `(out, in / groups, kernel.0, kernel.1)` and `norm` are folded into each other here, in f32.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let vb = VarBuilder::zeros(DType::F32, &Cpu);
/// let norm = nn::batch_norm(8, 1e-5, vb.pp("bn"))?;
/// let config = ops::ConvConfig::default().padding(1);
/// let conv = nn::conv2d_norm(3, 8, (3, 3), config, &norm, vb.pp("conv"))?; // folded: one convolution with bias
/// let x = Tensor::zeros((1, 3, 32, 32), DType::F32, &Cpu)?; // (batch, channels, h, w)
/// assert_eq!(conv.forward(&x)?.dims(), [1, 8, 32, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape, or a normalisation of other than `out` channels.
pub fn conv2d_norm(
    input: usize,
    out: usize,
    kernel: (usize, usize),
    config: ConvConfig,
    norm: &BatchNorm,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let (dtype, device) = (vb.dtype(), vb.device().clone());
    let conv = conv2d_no_bias(input, out, kernel, config, on_host(vb))?;
    let weight = conv.weight.broadcast_mul(&norm.scale.reshape((out, 1, 1, 1))?)?;
    let load = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(&device);
    let weight = ops::conv2d_weight(&load(&weight)?, config.groups)?;
    Ok(Conv2d { weight, bias: Some(load(&norm.shift)?), ..conv })
}

impl Conv2d {
    /// The same under another name, which labels what it launches.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::conv2d(x, &self.weight, self.bias.as_ref(), &self.config)
    }
}

/// What a batch normalisation comes to at inference, `scale * x + shift` for each channel, for [`conv2d_norm`]; see
/// [`batch_norm`].
#[derive(Debug, Clone)]
pub struct BatchNorm {
    scale: Tensor,
    shift: Tensor,
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
    /// `len` channels from `start` on, for one of several convolutions whose results are normalised together.
    ///
    /// # Errors
    /// Channels that are not there.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { scale: self.scale.narrow(0, start, len)?, shift: self.shift.narrow(0, start, len)? })
    }
}

/// Hands out tensors on the host, in f32: those of weights that are worked on before they are used.
fn on_host(vb: VarBuilder) -> VarBuilder {
    vb.set_device(Device::Cpu).set_dtype(DType::F32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle::ModuleT;

    use super::*;

    const CPU: Device = Device::Cpu;

    /// A grouped convolution of 4 channels to 6, and a batch normalisation of them.
    fn weights(dtype: DType) -> Result<VarBuilder<'static>> {
        let vector = |low: f32, high| Tensor::rand(low, high, 6, &CPU);
        let tensors = HashMap::from([
            ("conv.weight".to_string(), Tensor::randn(0f32, 1., (6, 2, 3, 1), &CPU)?),
            ("norm.weight".to_string(), vector(0.5, 2.)?),
            ("norm.bias".to_string(), vector(-1., 1.)?),
            ("norm.running_mean".to_string(), vector(-1., 1.)?),
            ("norm.running_var".to_string(), vector(0.01, 4.)?),
        ]);
        Ok(VarBuilder::from_tensors(tensors, dtype, &CPU))
    }

    fn config() -> ConvConfig {
        ConvConfig { groups: 2, ..Default::default() }
    }

    #[test]
    fn a_folded_normalisation_gives_what_a_separate_one_gives() -> Result<()> {
        let vb = weights(DType::F32)?;
        let x = Tensor::randn(0f32, 1., (2, 4, 5, 5), &CPU)?;
        let conv = conv2d_no_bias(4, 6, (3, 1), config(), vb.pp("conv"))?;
        let expected = candle_nn::batch_norm(6, 1e-3, vb.pp("norm"))?.forward_t(&conv.forward(&x)?, false)?;
        let norm = batch_norm(6, 1e-3, vb.pp("norm"))?;
        let folded = conv2d_norm(4, 6, (3, 1), config(), &norm, vb.pp("conv"))?;
        let error = (folded.forward(&x)? - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(error < 1e-5, "{error}");
        Ok(())
    }

    #[test]
    fn folding_rounds_once() -> Result<()> {
        let vb = weights(DType::F32)?;
        let folded =
            |vb: &VarBuilder| conv2d_norm(4, 6, (3, 1), config(), &batch_norm(6, 1e-3, vb.pp("norm"))?, vb.pp("conv"));
        let (exact, rounded) = (folded(&vb)?, folded(&vb.clone().set_dtype(DType::F16))?);
        let bits = |tensor: &Tensor| tensor.to_dtype(DType::F16)?.flatten_all()?.to_vec1::<half::f16>();
        assert_eq!(rounded.weight.dtype(), DType::F16);
        assert_eq!(bits(&rounded.weight)?, bits(&exact.weight)?);
        Ok(())
    }

    #[test]
    fn a_normalisation_of_other_channels_is_an_error() -> Result<()> {
        let vb = weights(DType::F32)?;
        let norm = batch_norm(6, 1e-3, vb.pp("norm"))?;
        assert!(norm.narrow(4, 3).is_err());
        for part in [norm.narrow(0, 1)?, norm.narrow(0, 3)?] {
            assert!(conv2d_norm(4, 6, (3, 1), config(), &part, vb.pp("conv")).is_err());
        }
        Ok(())
    }
}
