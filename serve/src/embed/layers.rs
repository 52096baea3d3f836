//! Layers of a checkpoint's head, by the names of their tensors.

use candle::{bail, DType, Module, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::Linear;
use opara_candle::ops;

/// A function of each element.
pub(super) type Function = fn(&Tensor) -> candle::Result<Tensor>;

/// No function.
pub(super) const IDENTITY: Function = |x| Ok(x.clone());

/// A layer of a head. The first name that the checkpoint has counts.
#[derive(Debug, Clone)]
pub(super) enum Layer {
    /// A product, a bias where the checkpoint has one, and a function.
    Linear { weights: Vec<String>, biases: Vec<String>, function: Function },
    /// A layer norm, with a shift where the checkpoint has one.
    Norm { name: String, epsilon: f64 },
}

impl Layer {
    /// The product whose tensors are `NAME.weight` and `NAME.bias`.
    pub fn linear(name: &str, function: Function) -> Self {
        Self::Linear { weights: vec![format!("{name}.weight")], biases: vec![format!("{name}.bias")], function }
    }

    /// A product by the first of these tensors, which is mostly the table of embeddings.
    pub fn tied(weights: &[&str], biases: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self::Linear { weights: owned(weights), biases: owned(biases), function: IDENTITY }
    }

    /// The norm whose tensors are `NAME.weight` and `NAME.bias`.
    pub fn norm(name: &str, epsilon: f64) -> Self {
        Self::Norm { name: name.to_owned(), epsilon }
    }
}

/// Layers on a device, one after another.
pub(super) struct Layers(Vec<Loaded>);

enum Loaded {
    Linear(Linear, Function),
    Norm { scale: Tensor, shift: Tensor, epsilon: f32 },
}

impl Layers {
    /// These layers, in `dtype`, over states of `width` elements, and the number of elements that the last gives.
    pub fn load(layers: &[Layer], vb: &VarBuilder, dtype: DType, mut width: usize) -> candle::Result<(Self, usize)> {
        let tensor = |name: &str| vb.get_unchecked_dtype(name, dtype);
        let mut loaded = Vec::with_capacity(layers.len());
        for layer in layers {
            match layer {
                Layer::Linear { weights, biases, function } => {
                    let found = |names: &[String]| names.iter().find(|name| vb.contains_tensor(name)).cloned();
                    let name = found(weights).unwrap_or_else(|| weights[0].clone());
                    let weight = tensor(&name)?;
                    let (out, input) = weight.dims2()?;
                    if input != width {
                        bail!("`{name}` takes {input} elements, and what is before it gives {width}");
                    }
                    let bias = found(biases).map(|bias| vb.get_with_hints_dtype(out, &bias, <_>::default(), dtype));
                    loaded.push(Loaded::Linear(Linear::new(name, weight, bias.transpose()?), *function));
                    width = out;
                }
                Layer::Norm { name, epsilon } => {
                    let vector = |part: &str| {
                        let name = format!("{name}.{part}");
                        vb.contains_tensor(&name).then(|| vb.get_with_hints_dtype(width, &name, <_>::default(), dtype))
                    };
                    let scale = vector("weight").unwrap_or_else(|| Tensor::ones(width, dtype, vb.device()))?;
                    let shift = vector("bias").unwrap_or_else(|| Tensor::zeros(width, dtype, vb.device()))?;
                    loaded.push(Loaded::Norm { scale, shift, epsilon: *epsilon as f32 });
                }
            }
        }
        Ok((Self(loaded), width))
    }

    pub fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| match layer {
            Loaded::Linear(linear, function) => function(&linear.forward(&x)?),
            Loaded::Norm { scale, shift, epsilon } => ops::layer_norm(&x, scale, shift, *epsilon),
        })
    }
}
