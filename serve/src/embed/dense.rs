//! The module `Dense`: a linear layer, an activation function, and a residual connection if need be.

use std::path::{Path, PathBuf};

use candle::{DType, Device, Module, Tensor};
use opara_candle::nn::{linear, linear_no_bias, Linear};
use opara_candle::ops;
use opara_weights::Unread;
use serde_json::Value;

use super::file_fields::FileFields;
use super::module_weights::ModuleWeights;
use super::Result;

/// A function of each element.
type Activation = fn(&Tensor) -> candle::Result<Tensor>;

/// PyTorch's names of activation functions, with its defaults.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("Identity", |x| Ok(x.clone())),
    ("Tanh", ops::tanh),
    ("ReLU", ops::relu),
    ("GELU", ops::gelu_erf),
    ("Sigmoid", ops::sigmoid),
    ("SiLU", ops::silu),
];

/// The configuration of a Dense module.
#[derive(Debug, Clone)]
pub(super) struct DenseConfig {
    folder: PathBuf,
    in_features: usize,
    out_features: usize,
    has_bias: bool,
    has_residual: bool,
    activation: Activation,
}

/// A Dense module on a device.
pub(super) struct Dense {
    linear: Linear,
    activation: Activation,
    residual: Residual,
}

enum Residual {
    None,
    Input,
    Projected(Linear),
}

impl DenseConfig {
    /// The module in this folder, whose configuration is `fields`, over vectors of `width` elements.
    pub fn of(folder: &Path, fields: FileFields, width: usize) -> Result<Self> {
        let (in_features, out_features) = (fields.need("in_features")?, fields.need("out_features")?);
        if in_features != width {
            let reason = format!("`in_features` is {in_features}, and the module before gives {width} elements");
            return Err(fields.wrong(reason));
        }
        if out_features == 0 {
            return Err(fields.wrong("`out_features` is 0".into()));
        }
        for name in ["module_input_name", "module_output_name"] {
            fields.expect(name, "sentence_embedding")?;
        }
        let has_bias = fields.take("bias")?.unwrap_or(true);
        let has_residual = fields.take("use_residual")?.unwrap_or(false);
        let activation = activation(&fields)?;
        fields.finish(&[])?;
        Ok(Self { folder: folder.into(), in_features, out_features, has_bias, has_residual, activation })
    }

    /// Elements of a vector that it gives.
    pub fn width(&self) -> usize {
        self.out_features
    }

    /// The module on a device.
    pub fn load(&self, device: &Device, unread: Unread) -> Result<Dense> {
        let Self { in_features, out_features, .. } = *self;
        let weights = ModuleWeights::open(&self.folder, DType::F32, device)?;
        let load = if self.has_bias { linear } else { linear_no_bias };
        let linear = load(in_features, out_features, weights.vb.pp("linear"))?;
        let residual = match self.has_residual {
            false => Residual::None,
            true if in_features == out_features => Residual::Input,
            true => Residual::Projected(linear_no_bias(in_features, out_features, weights.vb.pp("residual"))?),
        };
        weights.finish(unread)?;
        Ok(Dense { linear, activation: self.activation, residual })
    }
}

/// Without a name it is Tanh, as in sentence-transformers.
fn activation(fields: &FileFields) -> Result<Activation> {
    let name = fields.take::<Value>("activation_function")?.unwrap_or_else(|| "torch.nn.Tanh".into());
    let class = name.as_str().filter(|name| name.starts_with("torch.nn.")).and_then(|name| name.rsplit('.').next());
    let found = ACTIVATIONS.iter().find(|(known, _)| Some(*known) == class).map(|&(_, activation)| activation);
    let known = ACTIVATIONS.map(|(name, _)| name).join(", ");
    found.ok_or_else(|| {
        fields.unsupported(&format!("`activation_function` {name}"), &format!("{known} of torch.nn are"))
    })
}

impl Dense {
    /// Of `(batch, in_features)`.
    pub fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        let y = (self.activation)(&self.linear.forward(x)?)?;
        match &self.residual {
            Residual::None => Ok(y),
            Residual::Input => ops::add(&y, x),
            Residual::Projected(projection) => ops::add(&y, &projection.forward(x)?),
        }
    }
}
