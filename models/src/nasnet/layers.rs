//! The layers of the cells.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{batch_norm, conv2d_norm, Conv2d};
use opara_candle::ops::{self, Activation, ConvConfig, Padding, PoolConfig};
use opara_candle::scope;

/// Epsilon of every batch normalisation.
pub(super) const EPS: f64 = 1e-3;

/// Loads a 1x1 convolution with batch normalization.
pub(super) fn conv_1x1(input: usize, out: usize, name: &str, vb: &VarBuilder) -> Result<Conv2d> {
    let vb = vb.pp(name);
    let norm = batch_norm(out, EPS, vb.pp("bn"))?;
    Ok(conv2d_norm(input, out, (1, 1), ConvConfig::default(), &norm, vb.pp("conv"))?.named(name))
}

/// Averages 3x3 windows and keeps height and width.
pub(super) fn mean(x: &Tensor) -> Result<Tensor> {
    ops::avg_pool2d(x, &PoolConfig::new(3, 1).padding(1))
}

/// Averages 3x3 windows and halves height and width. Unlike [`mean`], it counts the padding, as timm does.
pub(super) fn halving_mean(x: &Tensor) -> Result<Tensor> {
    ops::avg_pool2d(x, &halving(x)?.count_padding(true))
}

/// Takes the maximum of 3x3 windows and halves height and width.
pub(super) fn halving_max(x: &Tensor) -> Result<Tensor> {
    ops::max_pool2d(x, &halving(x)?)
}

fn halving(x: &Tensor) -> Result<PoolConfig> {
    let (_, _, h, w) = x.dims4()?;
    Ok(PoolConfig::new(3, 2).padding(Padding::same((h, w), (3, 3), 2, 1)))
}

/// A depthwise convolution, then a 1x1 convolution with batch normalization.
struct Separable {
    depthwise: Tensor,
    stride: usize,
    input_activation: Activation,
    pointwise: Conv2d,
}

impl Module for Separable {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, groups, h, w) = x.dims4()?;
        let (_, _, kernel, _) = self.depthwise.dims4()?;
        let &Self { stride, input_activation, .. } = self;
        let padding = Padding::same((h, w), (kernel, kernel), stride, 1);
        let config =
            ConvConfig::default().stride(stride).padding(padding).groups(groups).input_activation(input_activation);
        self.pointwise.forward(&ops::conv2d(x, &self.depthwise, None, &config)?)
    }
}

/// A separable convolution as the search uses it: applied twice in a row, each time after a ReLU. The second ReLU is
/// fused with the convolution before it.
pub(super) struct Separables {
    name: String,
    first: Separable,
    second: Separable,
}

impl Separables {
    /// `channels` before, between and after the two separable convolutions. The first one has the stride.
    pub(super) fn load(
        channels: [usize; 3],
        kernel: usize,
        stride: usize,
        name: &str,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let vb = vb.pp(name);
        let separable = |index: usize, input: usize, out, stride, [before, after]: [Activation; 2]| -> Result<_> {
            let weights = vb.pp(format!("separable_{index}"));
            let norm = batch_norm(out, EPS, vb.pp(format!("bn_sep_{index}")))?;
            let config = ConvConfig::default().activation(after);
            let depthwise = weights.pp("depthwise_conv2d").get((input, 1, kernel, kernel), "weight")?;
            let depthwise = ops::conv2d_weight(&depthwise, input)?;
            let pointwise = conv2d_norm(input, out, (1, 1), config, &norm, weights.pp("pointwise_conv2d"))?;
            Ok(Separable { depthwise, stride, input_activation: before, pointwise })
        };
        let [input, middle, out] = channels;
        Ok(Self {
            name: name.into(),
            first: separable(1, input, middle, stride, [Activation::Relu; 2])?,
            second: separable(2, middle, out, 1, [Activation::None; 2])?,
        })
    }
}

impl Module for Separables {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        self.second.forward(&self.first.forward(x)?)
    }
}

/// Halves height and width without dropping every other row: half of the channels come from the even rows and columns,
/// the other half from the odd ones. If the last row or column is even, zeros take the place of the odd one after it.
pub(super) struct FactorizedReduction {
    even: Conv2d,
    odd: Conv2d,
}

impl FactorizedReduction {
    pub(super) fn load(input: usize, out: usize, vb: &VarBuilder) -> Result<Self> {
        let norm = batch_norm(out, EPS, vb.pp("final_path_bn"))?;
        let path = |name: &str, start| -> Result<Conv2d> {
            let norm = norm.narrow(start, out / 2)?;
            let config = ConvConfig::default();
            Ok(conv2d_norm(input, out / 2, (1, 1), config, &norm, vb.pp(name).pp("conv"))?.named(name))
        };
        Ok(Self { even: path("path_1", 0)?, odd: path("path_2", out / 2)? })
    }
}

impl Module for FactorizedReduction {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (even, odd) = (ops::subsample(x, 0, 2)?, ops::subsample(x, 1, 2)?);
        ops::cat(&[&self.even.forward(&even)?, &self.odd.forward(&odd)?], 1)
    }
}
