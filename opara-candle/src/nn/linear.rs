//! Linear layers.

use candle::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::weights::name_of;
use crate::ops::{self, Activation, PackedWeight};
use crate::trace::scope::scope;

/// `x · weightᵀ + bias`; made by [`linear`].
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
    /// A layer of these tensors: `weight` of shape `(out_dim, in_dim)`, `bias` of shape `(out_dim)`. `name` labels its launches.
    pub fn new(name: impl Into<String>, weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { name: name.into(), weight, bias }
    }

    /// The same layer with its weight as its device multiplies many rows fastest. On a CPU the copy takes the place of the weight.
    ///
    /// # Errors
    /// A weight of another rank, or without elements.
    pub fn packed(self) -> Result<PackedLinear> {
        let kind = match PackedWeight::new(&self.weight)? {
            Some(weight) => Kind::Packed { name: self.name, weight, bias: self.bias },
            None => Kind::Plain(self),
        };
        Ok(PackedLinear(kind))
    }

    /// What labels its launches.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `(out_dim, in_dim)`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// `(out_dim)`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// `activation(x · weightᵀ + bias)`; bias and activation are one launch.
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_act(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::linear_act(x, &self.weight, self.bias.as_ref(), activation)
    }

    /// `x · weightᵀ` without the bias, if the next layer adds it: see
    /// [`LayerNorm::forward_add`](super::LayerNorm::forward_add).
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_no_bias(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::linear(x, &self.weight, None)
    }

    /// `scale * (x · weightᵀ + bias)`, split into heads: from `(batch, seq, in_dim)` to `(batch, heads, seq, out_dim / heads)`.
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

/// A linear layer for many rows, such as those of an encoder; made by [`Linear::packed`].
#[derive(Debug, Clone)]
pub struct PackedLinear(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Plain(Linear),
    Packed { name: String, weight: PackedWeight, bias: Option<Tensor> },
}

impl PackedLinear {
    /// `(out_dim)`.
    pub fn bias(&self) -> Option<&Tensor> {
        match &self.0 {
            Kind::Plain(linear) => linear.bias(),
            Kind::Packed { bias, .. } => bias.as_ref(),
        }
    }

    /// As [`Linear::forward_act`].
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_act(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match &self.0 {
            Kind::Plain(linear) => linear.forward_act(x, activation),
            Kind::Packed { name, weight, bias } => {
                let _scope = scope(name);
                ops::linear_packed(x, weight, bias.as_ref(), activation)
            }
        }
    }

    /// As [`Linear::forward_no_bias`].
    ///
    /// # Errors
    /// Shapes that do not agree.
    pub fn forward_no_bias(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Plain(linear) => linear.forward_no_bias(x),
            Kind::Packed { name, weight, .. } => {
                let _scope = scope(name);
                ops::linear_packed(x, weight, None, Activation::None)
            }
        }
    }
}

impl Module for PackedLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_act(x, Activation::None)
    }
}
