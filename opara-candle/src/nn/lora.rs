//! Linear layers that stay, with a change of low rank that trains.

use candle::{bail, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::weights::name_of;
use super::Linear;
use crate::ops;
use crate::trace::scope::scope;

/// `x · weightᵀ + bias + (alpha / rank) · x · downᵀ · upᵀ` (LoRA: Hu et al., 2021); made by [`lora`]. Only `down` and `up` train: no
/// gradient of weight or bias is computed, whatever variables they are of.
#[derive(Debug, Clone)]
pub struct LoraLinear {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
    down: Tensor,
    up: Tensor,
    scale: f64,
}

/// Puts a change of this rank behind a layer of `weight`, (out_dim, in_dim), and `bias`, (out_dim), such as candle's or this library's. It
/// has the names of PEFT: `lora_A.weight` of shape (rank, in_dim) and `lora_B.weight` of shape (out_dim, rank), which begins with zeros.
///
/// ```
/// use candle::{DType, Device::Cpu, Module, Tensor};
/// use candle_nn::{Optimizer, VarBuilder, VarMap};
/// use opara_candle::{nn, optim::AdamW};
///
/// let base = candle_nn::linear(6, 4, VarBuilder::zeros(DType::F32, &Cpu))?;
/// let adapters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&adapters, DType::F32, &Cpu);
/// let layer = nn::lora(base.weight(), base.bias(), 2, 4., vb.pp("query"))?;
/// let mut optimizer = AdamW::of(&adapters, Default::default())?;
/// optimizer.backward_step(&(layer.forward(&Tensor::ones((3, 6), DType::F32, &Cpu)?)? - 1.)?.sqr()?.sum_all()?)?;
/// assert_eq!(optimizer.variables().count(), 2);
/// let merged = layer.merged()?; // a plain layer, for inference
/// # drop(merged);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A weight that is no matrix, a rank of 0, and tensors that are missing or have other shapes.
pub fn lora(weight: &Tensor, bias: Option<&Tensor>, rank: usize, alpha: f64, vb: VarBuilder) -> Result<LoraLinear> {
    let (out_dim, in_dim) = weight.dims2()?;
    if rank == 0 {
        bail!("a change of rank 0 changes nothing")
    }
    let of = |name: &str, shape: (usize, usize), init: Init| vb.pp(name).get_with_hints(shape, "weight", init);
    Ok(LoraLinear {
        name: name_of(&vb),
        weight: weight.detach(),
        bias: bias.map(Tensor::detach),
        down: of("lora_A", (rank, in_dim), candle_nn::init::DEFAULT_KAIMING_UNIFORM)?,
        up: of("lora_B", (out_dim, rank), Init::Const(0.))?,
        scale: alpha / rank as f64,
    })
}

impl LoraLinear {
    /// The layer with the change in its weight, which is faster where nothing trains.
    ///
    /// # Errors
    /// A failed launch.
    pub fn merged(&self) -> Result<Linear> {
        let change = (self.up.detach().matmul(&self.down.detach())? * self.scale)?;
        Ok(Linear::new(&self.name, (&self.weight + change)?, self.bias.clone()))
    }
}

impl Module for LoraLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        let change = ops::linear(&ops::linear(x, &self.down, None)?, &self.up, None)?;
        ops::linear(x, &self.weight, self.bias.as_ref())? + (change * self.scale)?
    }
}
