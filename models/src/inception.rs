//! Inception-v3 of Szegedy et al., "Rethinking the Inception Architecture for Computer Vision",
//! [arXiv:1512.00567](https://arxiv.org/abs/1512.00567).
//!
//! Tensor names follow torchvision's and timm's checkpoints, which agree. The auxiliary classifier, used only for
//! training, is left out.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::PoolConfig;

use crate::branches::Builder;
use crate::classifier::Classifier;

pub use crate::classifier::Config;

/// The max pooling of the stem and of the grid reduction modules.
fn halving() -> PoolConfig {
    PoolConfig::new(3, 2)
}

/// The average pooling before a branch's last convolution. It counts the padding.
fn mean() -> PoolConfig {
    PoolConfig::new(3, 1).padding(1).count_padding(true)
}

/// Figure 5, with a 5x5 convolution.
fn inception_a<'a>(x: Builder<'a>, name: &str, pool: usize) -> Result<Builder<'a>> {
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv("branch1x1", 64, (1, 1))?,
                x.fork().conv("branch5x5_1", 48, (1, 1))?.conv("branch5x5_2", 64, (5, 5))?,
                x.fork().conv("branch3x3dbl_1", 64, (1, 1))?.conv("branch3x3dbl_2", 96, (3, 3))?.conv(
                    "branch3x3dbl_3",
                    96,
                    (3, 3),
                )?,
                x.fork().avg_pool(mean()).conv("branch_pool", pool, (1, 1))?,
            ])
        })
    })
}

/// Figure 10: grid reduction from 35x35 to 17x17.
fn inception_b<'a>(x: Builder<'a>, name: &str) -> Result<Builder<'a>> {
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv_strided("branch3x3", 384, (3, 3), 2, 0)?,
                x.fork().conv("branch3x3dbl_1", 64, (1, 1))?.conv("branch3x3dbl_2", 96, (3, 3))?.conv_strided(
                    "branch3x3dbl_3",
                    96,
                    (3, 3),
                    2,
                    0,
                )?,
                x.fork().max_pool(halving()),
            ])
        })
    })
}

/// Figure 6 with n = 7: convolutions alternate between the two directions.
fn inception_c<'a>(x: Builder<'a>, name: &str, c7: usize) -> Result<Builder<'a>> {
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv("branch1x1", 192, (1, 1))?,
                x.fork().conv("branch7x7_1", c7, (1, 1))?.conv("branch7x7_2", c7, (1, 7))?.conv(
                    "branch7x7_3",
                    192,
                    (7, 1),
                )?,
                x.fork()
                    .conv("branch7x7dbl_1", c7, (1, 1))?
                    .conv("branch7x7dbl_2", c7, (7, 1))?
                    .conv("branch7x7dbl_3", c7, (1, 7))?
                    .conv("branch7x7dbl_4", c7, (7, 1))?
                    .conv("branch7x7dbl_5", 192, (1, 7))?,
                x.fork().avg_pool(mean()).conv("branch_pool", 192, (1, 1))?,
            ])
        })
    })
}

/// Figure 10 again: grid reduction from 17x17 to 8x8.
fn inception_d<'a>(x: Builder<'a>, name: &str) -> Result<Builder<'a>> {
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv("branch3x3_1", 192, (1, 1))?.conv_strided("branch3x3_2", 320, (3, 3), 2, 0)?,
                x.fork()
                    .conv("branch7x7x3_1", 192, (1, 1))?
                    .conv("branch7x7x3_2", 192, (1, 7))?
                    .conv("branch7x7x3_3", 192, (7, 1))?
                    .conv_strided("branch7x7x3_4", 192, (3, 3), 2, 0)?,
                x.fork().max_pool(halving()),
            ])
        })
    })
}

/// Figure 7: two branches end in two convolutions each, one per direction.
fn inception_e<'a>(x: Builder<'a>, name: &str) -> Result<Builder<'a>> {
    x.module(name, |x| {
        x.split(|x| {
            Ok([
                x.fork().conv("branch1x1", 320, (1, 1))?,
                x.fork().conv("branch3x3_1", 384, (1, 1))?.split(|x| {
                    Ok([x.fork().conv("branch3x3_2a", 384, (1, 3))?, x.fork().conv("branch3x3_2b", 384, (3, 1))?])
                })?,
                x.fork().conv("branch3x3dbl_1", 448, (1, 1))?.conv("branch3x3dbl_2", 384, (3, 3))?.split(|x| {
                    Ok([x.fork().conv("branch3x3dbl_3a", 384, (1, 3))?, x.fork().conv("branch3x3dbl_3b", 384, (3, 1))?])
                })?,
                x.fork().avg_pool(mean()).conv("branch_pool", 192, (1, 1))?,
            ])
        })
    })
}

/// The network: maps images to one score per class.
pub struct InceptionV3(Classifier);

impl InceptionV3 {
    /// Loads the tensors below `vb`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        // Table 1.
        let x = Builder::new(3, vb.clone())
            .conv_strided("Conv2d_1a_3x3", 32, (3, 3), 2, 0)?
            .conv_strided("Conv2d_2a_3x3", 32, (3, 3), 1, 0)?
            .conv("Conv2d_2b_3x3", 64, (3, 3))?
            .max_pool(halving())
            .conv("Conv2d_3b_1x1", 80, (1, 1))?
            .conv_strided("Conv2d_4a_3x3", 192, (3, 3), 1, 0)?
            .max_pool(halving());
        let x = inception_a(x, "Mixed_5b", 32)?;
        let x = inception_a(x, "Mixed_5c", 64)?;
        let x = inception_a(x, "Mixed_5d", 64)?;
        let x = inception_b(x, "Mixed_6a")?;
        let x = inception_c(x, "Mixed_6b", 128)?;
        let x = inception_c(x, "Mixed_6c", 160)?;
        let x = inception_c(x, "Mixed_6d", 160)?;
        let x = inception_c(x, "Mixed_6e", 192)?;
        let x = inception_d(x, "Mixed_7a")?;
        let x = inception_e(x, "Mixed_7b")?;
        let x = inception_e(x, "Mixed_7c")?;
        Ok(Self(Classifier::load(x, vb, config)?))
    }
}

/// Maps `(batch, 3, h, w)` to `(batch, classes)`: scores before the softmax. The paper's images have 299x299 pixels;
/// the minimum is 75x75.
impl Module for InceptionV3 {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}
