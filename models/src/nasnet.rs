//! NASNet-A of Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition",
//! [arXiv:1707.07012](https://arxiv.org/abs/1707.07012).
//!
//! Tensor names and padding follow timm's `nasnetalarge`. The auxiliary classifier, used only for training, is left
//! out.

use candle::{bail, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{batch_norm, conv2d_norm, linear, Conv2d, Linear};
use opara_candle::ops::{self, Activation, ConvConfig};
use serde::Deserialize;

mod cells;
mod layers;

use cells::{Grid, NormalCell, ReductionCell};

/// Stages of normal cells, with a reduction cell between stages.
const STAGES: usize = 3;

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Number of classes.
    pub num_classes: usize,
    /// Output channels of the first convolution.
    pub stem_size: usize,
    /// Output channels of the last cell, the second number of a name such as "6 @ 4032": a multiple of 96.
    pub num_features: usize,
    /// Normal cells in each of the three stages, the first number of the name.
    pub cells: usize,
    /// Does the first cell of a stage combine the reduction cell's output with that of the cell two before the
    /// reduction cell, rather than the one right before it?
    pub skip_reduction_input: bool,
}

impl Default for Config {
    /// NASNet-A Large.
    fn default() -> Self {
        Self::large()
    }
}

impl Config {
    /// NASNet-A Large, 6 @ 4032, for images of 331x331 pixels.
    pub fn large() -> Self {
        Self { num_classes: 1000, stem_size: 96, num_features: 4032, cells: 6, skip_reduction_input: true }
    }

    /// NASNet-A Mobile, 4 @ 1056, for images of 224x224 pixels.
    pub fn mobile() -> Self {
        Self { num_classes: 1000, stem_size: 32, num_features: 1056, cells: 4, skip_reduction_input: false }
    }

    /// A small model for tests.
    pub fn tiny() -> Self {
        Self { num_classes: 10, stem_size: 8, num_features: 192, ..Self::large() }
    }
}

/// The cells of a stage, with the reduction cell that precedes every stage but the first.
struct Stage {
    reduction: Option<ReductionCell>,
    cells: Vec<NormalCell>,
}

/// The network: maps images to one score per class.
pub struct NasNet {
    conv: Conv2d,
    stem: [ReductionCell; 2],
    stages: Vec<Stage>,
    skip_reduction_input: bool,
    last_linear: Linear,
}

impl NasNet {
    /// Loads the tensors below `vb`.
    ///
    /// The cells of stage `s` are called `cell_{6 * s}` and following, even in networks with fewer than six cells per
    /// stage, as in existing checkpoints of Mobile.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a configuration without cells, or whose channels cannot be halved
    /// as often as needed.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let &Config { num_classes, stem_size, num_features, cells, skip_reduction_input } = config;
        if num_features == 0 || num_features % 96 != 0 || cells == 0 {
            bail!("a NASNet {cells} @ {num_features}: cells must be more than 0, and features a multiple of 96")
        }
        // The last cell has six blocks, with filters doubled twice; the stem's filters start at a quarter.
        let filters = num_features / 24;

        let norm = batch_norm(stem_size, layers::EPS, vb.pp("conv0.bn"))?;
        // Each cell starts with a ReLU, so the convolution's ReLU replaces the first ReLU of the cells that read it.
        let config = ConvConfig::default().stride(2).activation(Activation::Relu);
        let conv = conv2d_norm(3, stem_size, (3, 3), config, &norm, vb.pp("conv0.conv"))?.named("conv0");
        let conv_grid = Grid { channels: stem_size, halvings: 1 };
        let (stem_0, mut previous) = ReductionCell::load(conv_grid, None, filters / 4, "cell_stem_0", &vb)?;
        let (stem_1, mut x) = ReductionCell::load(previous, Some(conv_grid), filters / 2, "cell_stem_1", &vb)?;

        let mut stages = Vec::with_capacity(STAGES);
        for stage in 0..STAGES {
            let filters = filters << stage;
            let mut reduction = None;
            if let Some(index) = stage.checked_sub(1) {
                let name = format!("reduction_cell_{index}");
                let (cell, grid) = ReductionCell::load(x, Some(previous), filters, &name, &vb)?;
                previous = if skip_reduction_input { previous } else { x };
                x = grid;
                reduction = Some(cell);
            }
            let first = stage * cells.max(6);
            let mut normal = Vec::with_capacity(cells);
            for index in first..first + cells {
                let (cell, grid) = NormalCell::load(x, previous, filters, &format!("cell_{index}"), &vb)?;
                (previous, x) = (x, grid);
                normal.push(cell);
            }
            stages.push(Stage { reduction, cells: normal });
        }
        let last_linear = linear(x.channels, num_classes, vb.pp("last_linear"))?;
        Ok(Self { conv, stem: [stem_0, stem_1], stages, skip_reduction_input, last_linear })
    }
}

/// Maps `(batch, 3, h, w)` to `(batch, classes)`: scores before the softmax.
impl Module for NasNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let conv = self.conv.forward(x)?;
        let mut previous = self.stem[0].forward(&conv, &conv)?;
        let mut x = self.stem[1].forward(&previous, &conv)?;
        for stage in &self.stages {
            if let Some(reduction) = &stage.reduction {
                let reduced = reduction.forward(&x, &previous)?;
                previous = if self.skip_reduction_input { previous } else { x };
                x = reduced;
            }
            for cell in &stage.cells {
                let next = cell.forward(&x, &previous)?;
                (previous, x) = (x, next);
            }
        }
        self.last_linear.forward(&ops::global_avg_pool2d(&x)?)
    }
}
