//! Networks of convolutions and pools with branches, as in the Inception papers.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{batch_norm, conv2d_norm, Conv2d};
use opara_candle::ops::{Activation, ConvConfig, Padding, PoolConfig};
use opara_candle::{ops, scope};

/// Epsilon of every batch normalisation.
const EPS: f64 = 1e-3;

/// A layer that maps `(batch, channels, h, w)` to another such tensor.
enum Layer {
    Conv(Conv2d),
    MaxPool(PoolConfig),
    AvgPool(PoolConfig),
    /// Branches with the same input, whose outputs are concatenated along the channels.
    Branches(Vec<Network>),
    Module(String, Network),
}

impl Module for Layer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Conv(conv) => conv.forward(x),
            Self::MaxPool(config) => ops::max_pool2d(x, config),
            Self::AvgPool(config) => ops::avg_pool2d(x, config),
            Self::Branches(branches) => {
                let parts = branches.iter().map(|branch| branch.forward(x)).collect::<Result<Vec<_>>>()?;
                ops::cat(&parts.iter().collect::<Vec<_>>(), 1)
            }
            Self::Module(name, network) => {
                let _scope = scope(name);
                network.forward(x)
            }
        }
    }
}

/// Layers in sequence.
pub(crate) struct Network(Vec<Layer>);

impl Module for Network {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

/// Loads a network layer by layer, with tensor names below one path.
pub(crate) struct Builder<'a> {
    vb: VarBuilder<'a>,
    channels: usize,
    layers: Vec<Layer>,
}

impl<'a> Builder<'a> {
    /// Starts a network with `channels` input channels.
    pub(crate) fn new(channels: usize, vb: VarBuilder<'a>) -> Self {
        Self { vb, channels, layers: Vec::new() }
    }

    /// The number of output channels of the layers so far.
    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    /// Starts another network at the output of this one.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.channels, self.vb.clone())
    }

    pub(crate) fn build(self) -> Network {
        Network(self.layers)
    }

    fn push(mut self, layer: Layer, channels: usize) -> Self {
        self.layers.push(layer);
        Self { channels, ..self }
    }

    /// Adds convolution, batch normalization and ReLU. The output has the input's height and width.
    pub(crate) fn conv(self, name: &str, out: usize, kernel: (usize, usize)) -> Result<Self> {
        self.conv_strided(name, out, kernel, 1, (kernel.0 / 2, kernel.1 / 2))
    }

    /// Adds convolution, batch normalization and ReLU.
    pub(crate) fn conv_strided(
        self,
        name: &str,
        out: usize,
        kernel: (usize, usize),
        stride: usize,
        padding: impl Into<Padding>,
    ) -> Result<Self> {
        let config = ConvConfig::default().stride(stride).padding(padding).activation(Activation::Relu);
        let vb = self.vb.pp(name);
        let norm = batch_norm(out, EPS, vb.pp("bn"))?;
        let conv = conv2d_norm(self.channels, out, kernel, config, &norm, vb.pp("conv"))?.named(name);
        Ok(self.push(Layer::Conv(conv), out))
    }

    pub(crate) fn max_pool(self, config: PoolConfig) -> Self {
        let channels = self.channels;
        self.push(Layer::MaxPool(config), channels)
    }

    pub(crate) fn avg_pool(self, config: PoolConfig) -> Self {
        let channels = self.channels;
        self.push(Layer::AvgPool(config), channels)
    }

    /// Adds branches with the same input; `f` [forks](Self::fork) them from the builder.
    pub(crate) fn split<const N: usize>(self, f: impl FnOnce(&Self) -> Result<[Self; N]>) -> Result<Self> {
        let branches = f(&self)?;
        let channels = branches.iter().map(|branch| branch.channels).sum();
        Ok(self.push(Layer::Branches(branches.map(Self::build).into()), channels))
    }

    /// Adds a module called `name`. `f` adds its layers, whose tensor names start with that name.
    pub(crate) fn module(self, name: &str, f: impl FnOnce(Self) -> Result<Self>) -> Result<Self> {
        let module = f(Self::new(self.channels, self.vb.pp(name)))?;
        let channels = module.channels;
        Ok(self.push(Layer::Module(name.into(), module.build()), channels))
    }
}
