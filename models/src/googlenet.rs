//! GoogLeNet of Szegedy et al., "Going Deeper with Convolutions", [arXiv:1409.4842](https://arxiv.org/abs/1409.4842),
//! with batch normalization, which was added later.
//!
//! Tensor names follow torchvision's checkpoints. As in torchvision, the paper's 5x5 branch has a 3x3 kernel. The
//! auxiliary classifiers, used only for training, are left out.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::PoolConfig;

use crate::branches::Builder;
use crate::classifier::Classifier;

pub use crate::classifier::Config;

/// A module's name and its output channels: Table 1's columns `#1x1`, `#3x3 reduce`, `#3x3`, `#5x5 reduce`, `#5x5` and
/// `pool proj`.
type Row = (&'static str, [usize; 6]);

/// Table 1's modules, from one max pooling to the next.
const STAGES: [&[Row]; 3] = [
    &[("inception3a", [64, 96, 128, 16, 32, 32]), ("inception3b", [128, 128, 192, 32, 96, 64])],
    &[
        ("inception4a", [192, 96, 208, 16, 48, 64]),
        ("inception4b", [160, 112, 224, 24, 64, 64]),
        ("inception4c", [128, 128, 256, 24, 64, 64]),
        ("inception4d", [112, 144, 288, 32, 64, 64]),
        ("inception4e", [256, 160, 320, 32, 128, 128]),
    ],
    &[("inception5a", [256, 160, 320, 32, 128, 128]), ("inception5b", [384, 192, 384, 48, 128, 128])],
];

/// A max pooling that halves height and width, with a partial window at the end.
fn halving(kernel: usize) -> PoolConfig {
    PoolConfig::new(kernel, 2).ceil(true)
}

/// Figure 2(b).
fn inception<'a>(x: Builder<'a>, (name, channels): Row) -> Result<Builder<'a>> {
    let [c1, r3, c3, r5, c5, pool] = channels;
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv("branch1", c1, (1, 1))?,
                x.fork().conv("branch2.0", r3, (1, 1))?.conv("branch2.1", c3, (3, 3))?,
                x.fork().conv("branch3.0", r5, (1, 1))?.conv("branch3.1", c5, (3, 3))?,
                x.fork().max_pool(PoolConfig::new(3, 1).padding(1)).conv("branch4.1", pool, (1, 1))?,
            ])
        })
    })
}

/// The network: maps images to one score per class.
pub struct GoogLeNet(Classifier);

impl GoogLeNet {
    /// Loads the tensors below `vb`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let mut x = Builder::new(3, vb.clone())
            .conv_strided("conv1", 64, (7, 7), 2, 3)?
            .max_pool(halving(3))
            .conv("conv2", 64, (1, 1))?
            .conv("conv3", 192, (3, 3))?;
        for (modules, kernel) in STAGES.into_iter().zip([3, 3, 2]) {
            x = modules.iter().try_fold(x.max_pool(halving(kernel)), |x, row| inception(x, *row))?;
        }
        Ok(Self(Classifier::load(x, vb, config)?))
    }
}

/// Maps `(batch, 3, h, w)` to `(batch, classes)`: scores before the softmax. The paper's images have 224x224 pixels.
impl Module for GoogLeNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}
