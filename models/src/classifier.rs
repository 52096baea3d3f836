//! The common parts of GoogLeNet and Inception-v3.

use candle::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{linear, Linear};
use opara_candle::{ops, scope};
use serde::Deserialize;

use crate::branches::{Builder, Network};

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Number of classes.
    pub num_classes: usize,
    /// Are the input images normalized with ImageNet's mean and deviation, while the weights expect 0.5 and 0.5? This
    /// holds for torchvision's published weights.
    pub transform_input: bool,
}

impl Default for Config {
    /// ImageNet's 1000 classes.
    fn default() -> Self {
        Self { num_classes: 1000, transform_input: false }
    }
}

/// Modules, then global average pooling and a linear layer called `fc`.
pub(crate) struct Classifier {
    transform: Option<TransformInput>,
    features: Network,
    fc: Linear,
}

impl Classifier {
    pub(crate) fn load(features: Builder, vb: VarBuilder, config: &Config) -> Result<Self> {
        let transform = config.transform_input.then(|| TransformInput::new(vb.dtype(), vb.device())).transpose()?;
        let fc = linear(features.channels(), config.num_classes, vb.pp("fc"))?;
        Ok(Self { transform, features: features.build(), fc })
    }
}

impl Module for Classifier {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.transform.as_ref().map_or(Ok(x.clone()), |transform| transform.forward(x))?;
        self.fc.forward(&ops::global_avg_pool2d(&self.features.forward(&x)?)?)
    }
}

/// Mean and standard deviation of ImageNet's channels.
const IMAGENET: [(f64, f64); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// Converts images, `(batch, 3, h, w)`, from ImageNet's normalization to one with 0.5 and 0.5.
struct TransformInput {
    scale: Tensor,
    shift: Tensor,
}

impl TransformInput {
    fn new(dtype: DType, device: &Device) -> Result<Self> {
        let tensor = |of_channel: fn((f64, f64)) -> f64| {
            let values = IMAGENET.map(|channel| of_channel(channel) as f32);
            Tensor::new(&values, &Device::Cpu)?.reshape((1, 3, 1, 1))?.to_dtype(dtype)?.to_device(device)
        };
        Ok(Self { scale: tensor(|(_, deviation)| deviation / 0.5)?, shift: tensor(|(mean, _)| (mean - 0.5) / 0.5)? })
    }
}

impl Module for TransformInput {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope("transform_input");
        // Images of one channel must not be broadcast to three.
        match x.dims() {
            [_, 3, _, _] => (),
            dims => bail!("an image of shape {dims:?}, not (batch, 3, height, width)"),
        }
        ops::add(&ops::mul(x, &self.scale)?, &self.shift)
    }
}
