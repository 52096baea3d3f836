//! The two cells found by the architecture search (Figure 4 of the paper). Their five blocks are called `comb_iter_0`
//! to `comb_iter_4`.
//!
//! A cell combines `x`, the output of the previous cell, with `previous`, the output of the cell before that. It reads
//! both only through a ReLU. So each cell applies the ReLU to its output, once for all readers.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::Conv2d;
use opara_candle::ops::Activation;
use opara_candle::{ops, scope};

use super::layers::{conv_1x1, halving_max, halving_mean, mean, FactorizedReduction, Separables};

/// The shape of a cell's output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) channels: usize,
    /// Number of times that height and width have been halved since the input.
    pub(super) halvings: usize,
}

/// Converts `previous` to the height, width and channels of the cell's `x`.
enum Adjust {
    Conv(Conv2d),
    Halve(FactorizedReduction),
    /// Only for the first cell, whose only input is `x`.
    Nothing,
}

impl Adjust {
    fn load(previous: Grid, x: Grid, filters: usize, vb: &VarBuilder) -> Result<Self> {
        Ok(if previous.halvings < x.halvings {
            Self::Halve(FactorizedReduction::load(previous.channels, filters, vb)?)
        } else {
            Self::Conv(conv_1x1(previous.channels, filters, "conv_prev_1x1", vb)?)
        })
    }
}

impl Module for Adjust {
    fn forward(&self, previous: &Tensor) -> Result<Tensor> {
        match self {
            Self::Conv(conv) => conv.forward(previous),
            Self::Halve(reduction) => reduction.forward(previous),
            Self::Nothing => Ok(previous.clone()),
        }
    }
}

/// The cell that keeps height and width.
pub(super) struct NormalCell {
    name: String,
    adjust: Adjust,
    conv: Conv2d,
    /// Named by block, side and kernel size.
    left_0_5x5: Separables,
    right_0_3x3: Separables,
    left_1_5x5: Separables,
    right_1_3x3: Separables,
    left_4_3x3: Separables,
}

impl NormalCell {
    /// Loads the cell called `name` with `filters` channels per block. Also returns the shape of its output.
    pub(super) fn load(x: Grid, previous: Grid, filters: usize, name: &str, vb: &VarBuilder) -> Result<(Self, Grid)> {
        let vb = vb.pp(name);
        let separables = |name: &str, kernel| Separables::load([filters; 3], kernel, 1, name, &vb);
        let cell = Self {
            name: name.into(),
            adjust: Adjust::load(previous, x, filters, &vb)?,
            conv: conv_1x1(x.channels, filters, "conv_1x1", &vb)?,
            left_0_5x5: separables("comb_iter_0_left", 5)?,
            right_0_3x3: separables("comb_iter_0_right", 3)?,
            left_1_5x5: separables("comb_iter_1_left", 5)?,
            right_1_3x3: separables("comb_iter_1_right", 3)?,
            left_4_3x3: separables("comb_iter_4_left", 3)?,
        };
        Ok((cell, Grid { channels: 6 * filters, ..x }))
    }

    pub(super) fn forward(&self, x: &Tensor, previous: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        let x = self.conv.forward(x)?;
        let previous = self.adjust.forward(previous)?;

        let (left_0, right_0) = (self.left_0_5x5.forward(&x)?, self.right_0_3x3.forward(&previous)?);
        let (left_1, right_1) = (self.left_1_5x5.forward(&previous)?, self.right_1_3x3.forward(&previous)?);
        // This is also the second average of the third block.
        let (left_2, left_3) = (mean(&x)?, mean(&previous)?);
        let left_4 = self.left_4_3x3.forward(&x)?;
        let blocks = [
            (&previous, None),
            (&left_0, Some(&right_0)),
            (&left_1, Some(&right_1)),
            (&left_2, Some(&previous)),
            (&left_3, Some(&left_3)),
            (&left_4, Some(&x)),
        ];
        ops::cat_sums(&blocks, 1, Activation::Relu)
    }
}

/// The cell that halves height and width.
pub(super) struct ReductionCell {
    name: String,
    adjust: Adjust,
    conv: Conv2d,
    /// Named by block, side and kernel size.
    left_0_5x5: Separables,
    right_0_7x7: Separables,
    right_1_7x7: Separables,
    right_2_5x5: Separables,
    left_4_3x3: Separables,
}

impl ReductionCell {
    /// Loads the cell called `name` with `filters` channels per block. Also returns the shape of its output. Without
    /// `previous`, `x` is used in its place, unadjusted.
    pub(super) fn load(
        x: Grid,
        previous: Option<Grid>,
        filters: usize,
        name: &str,
        vb: &VarBuilder,
    ) -> Result<(Self, Grid)> {
        let vb = vb.pp(name);
        let adjust = previous.map(|previous| Adjust::load(previous, x, filters, &vb));
        let right = if adjust.is_some() { filters } else { x.channels };
        let left = |name: &str, kernel, stride| Separables::load([filters; 3], kernel, stride, name, &vb);
        let right = |name: &str, kernel| Separables::load([right, filters, filters], kernel, 2, name, &vb);
        let cell = Self {
            name: name.into(),
            adjust: adjust.transpose()?.unwrap_or(Adjust::Nothing),
            conv: conv_1x1(x.channels, filters, "conv_1x1", &vb)?,
            left_0_5x5: left("comb_iter_0_left", 5, 2)?,
            right_0_7x7: right("comb_iter_0_right", 7)?,
            right_1_7x7: right("comb_iter_1_right", 7)?,
            right_2_5x5: right("comb_iter_2_right", 5)?,
            left_4_3x3: left("comb_iter_4_left", 3, 1)?,
        };
        Ok((cell, Grid { channels: 4 * filters, halvings: x.halvings + 1 }))
    }

    pub(super) fn forward(&self, x: &Tensor, previous: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        let x = self.conv.forward(x)?;
        let previous = self.adjust.forward(previous)?;
        let max = halving_max(&x)?;

        let block_0 = ops::add(&self.left_0_5x5.forward(&x)?, &self.right_0_7x7.forward(&previous)?)?;
        let block_1 = ops::add(&max, &self.right_1_7x7.forward(&previous)?)?;
        let (left_2, right_2) = (halving_mean(&x)?, self.right_2_5x5.forward(&previous)?);
        let (left_3, left_4) = (mean(&block_0)?, self.left_4_3x3.forward(&block_0)?);
        let blocks = [(&block_1, None), (&left_2, Some(&right_2)), (&left_3, Some(&block_1)), (&left_4, Some(&max))];
        ops::cat_sums(&blocks, 1, Activation::Relu)
    }
}
