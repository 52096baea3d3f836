//! Factors of losses in f16.

use crate::ops::optimizer::rule::place;

/// What losses are multiplied with, so that gradients of f16 do not vanish. It is halved at a step whose gradients are not finite, which is
/// left out, and doubled after many steps whose gradients are.
#[derive(Debug, Clone, PartialEq)]
pub struct LossScale {
    /// The factor at first. Default: 32,768.
    pub first: f64,
    /// Steps after which it is doubled. Default: 2,000.
    pub growth_steps: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { first: 32_768., growth_steps: 2_000 }
    }
}

impl LossScale {
    /// Writes it to a control block.
    pub(super) fn write(&self, control: &mut [f64]) {
        control[place::SCALE] = self.first;
        control[place::GOOD] = 0.;
        control[place::GROWTH] = self.growth_steps.max(1) as f64;
    }
}
