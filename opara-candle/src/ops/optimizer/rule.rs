//! What optimizers do with an element.

use candle::{Storage, Tensor};
use parking_lot::Mutex;

/// Numbers in the control block: an f64 tensor on the device that all launches of an optimizer read, so that a captured step needs no
/// new arguments.
pub(crate) const CONTROL: usize = 21;

/// Sums of squares that a gradient of so many elements has: one for each 16,384. `optimizer.cu` has the same.
pub(crate) fn sums_of(numel: usize) -> usize {
    numel.div_ceil(16_384)
}

/// Places in the control block. `optimizer.cu` has the same.
pub(crate) mod place {
    /// Steps that were taken.
    pub const STEPS: usize = 0;
    /// The learning rate that is set.
    pub const BASE: usize = 1;
    /// The learning rate of this step.
    pub const RATE: usize = 2;
    /// 1 / (1 - beta1 ^ steps).
    pub const FIRST: usize = 3;
    /// 1 / (1 - beta2 ^ steps).
    pub const SECOND: usize = 4;
    /// What gradients are multiplied with.
    pub const FACTOR: usize = 5;
    /// The norm of all gradients, if it is computed.
    pub const NORM: usize = 6;
    /// The largest norm that stays as it is; 0 for none.
    pub const MAX_NORM: usize = 7;
    pub const BETA1: usize = 8;
    pub const BETA2: usize = 9;
    /// The schedule: its kind, its steps of warming up, all its steps, and the part of the rate that remains at its end.
    pub const SCHEDULE: usize = 10;
    pub const WARM_UP: usize = 11;
    pub const TOTAL: usize = 12;
    pub const REMAINS: usize = 13;
    /// Do values stay, since gradients are not finite or more batches are to come? 1 or 0.
    pub const IS_SKIPPED: usize = 14;
    /// Steps that were left out, since their gradients were not finite.
    pub const SKIPPED: usize = 15;
    /// Batches of this step that were taken, and those that a step has.
    pub const TAKEN: usize = 16;
    pub const BATCHES: usize = 17;
    /// What losses are multiplied with, the steps since it changed, and those after which it is doubled; 0 if it stays.
    pub const SCALE: usize = 18;
    pub const GOOD: usize = 19;
    pub const GROWTH: usize = 20;
}

/// How an optimizer changes a value by its gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Without momentum, as candle's.
    Descent,
    /// PyTorch's SGD: the moment is `momentum * moment + gradient`.
    Momentum { momentum: f64, is_nesterov: bool },
    /// Adam (Kingma and Ba, 2015); AdamW (Loshchilov and Hutter, 2019) if the decay is decoupled from the gradient.
    Adam { beta1: f64, beta2: f64, eps: f64, is_decoupled: bool },
    /// Lion (Chen et al., 2023).
    Lion { beta1: f64, beta2: f64 },
}

impl Rule {
    /// Numbers that are kept for each element.
    pub fn moments(self) -> usize {
        match self {
            Self::Descent => 0,
            Self::Momentum { .. } | Self::Lion { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// The bases of the bias corrections.
    pub fn betas(self) -> [f64; 2] {
        match self {
            Self::Adam { beta1, beta2, .. } => [beta1, beta2],
            _ => [0.; 2],
        }
    }
}

/// How a tensor is updated, beside the rule.
pub(crate) struct Update {
    /// The part of a value that it loses by a learning rate of 1.
    pub decay: f64,
    /// What the learning rate is multiplied with.
    pub rate: f64,
    /// [`Rule::moments`] times the tensor's numbers, which nobody else has.
    pub moments: Mutex<Storage>,
}

/// What [`blend`](super::blend) does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Blend {
    /// Gradients are added to sums, which the first batch of a step overwrites.
    Sum,
    /// Averages keep this part of themselves, and the rest is the values'. Where values stay, they do, too.
    Average(f64),
}

/// A value, and what changes it.
pub(crate) struct Updated<'a> {
    pub by: &'a Update,
    pub value: &'a Tensor,
    pub gradient: &'a Tensor,
}
