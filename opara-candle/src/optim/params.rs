//! Settings of each optimizer.

use candle_nn::ParamsAdamW;

use crate::ops::optimizer::rule::Rule;

/// Settings of an optimizer: [`ParamsSGD`], [`ParamsAdam`], candle's [`ParamsAdamW`], and [`ParamsLion`].
pub trait Params: sealed::Sealed + Clone {
    /// The learning rate.
    fn rate(&self) -> f64;

    /// The weight decay.
    fn decay(&self) -> f64;
}

pub(super) mod sealed {
    use super::Rule;

    /// How values are changed.
    pub trait Sealed {
        fn rule(&self) -> Rule;
    }
}

/// Settings of [`SGD`](super::SGD). Without momentum and decay it is candle's `SGD`, bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamsSGD {
    /// The learning rate.
    pub lr: f64,
    /// The part of the moment that stays at each step. Default: 0.
    pub momentum: f64,
    /// Does a step look ahead by its momentum (Nesterov)? Default: no.
    pub is_nesterov: bool,
    /// The part of a value that is added to its gradient. Default: 0.
    pub weight_decay: f64,
}

impl From<f64> for ParamsSGD {
    fn from(lr: f64) -> Self {
        Self { lr, momentum: 0., is_nesterov: false, weight_decay: 0. }
    }
}

/// Settings of [`Adam`](super::Adam), whose decay is added to gradients, as PyTorch's `Adam` has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamsAdam {
    /// The learning rate. Default: 0.001.
    pub lr: f64,
    /// The part of the mean of gradients that stays. Default: 0.9.
    pub beta1: f64,
    /// The part of the mean of squares that stays. Default: 0.999.
    pub beta2: f64,
    /// What is added to the root of that mean. Default: 1e-8.
    pub eps: f64,
    /// The part of a value that is added to its gradient. Default: 0.
    pub weight_decay: f64,
}

impl Default for ParamsAdam {
    fn default() -> Self {
        Self { lr: 0.001, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0. }
    }
}

/// Settings of [`Lion`](super::Lion) (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).
#[derive(Debug, Clone, PartialEq)]
pub struct ParamsLion {
    /// The learning rate. Default: 0.0001.
    pub lr: f64,
    /// The part of the moment in a step. Default: 0.9.
    pub beta1: f64,
    /// The part of the moment that stays. Default: 0.99.
    pub beta2: f64,
    /// The part of a value that it loses by a learning rate of 1. Default: 0.
    pub weight_decay: f64,
}

impl Default for ParamsLion {
    fn default() -> Self {
        Self { lr: 1e-4, beta1: 0.9, beta2: 0.99, weight_decay: 0. }
    }
}

macro_rules! params {
    ($($name:ident: $of:ident => $rule:expr;)*) => {$(
        impl Params for $name {
            fn rate(&self) -> f64 {
                self.lr
            }

            fn decay(&self) -> f64 {
                self.weight_decay
            }
        }

        impl sealed::Sealed for $name {
            fn rule(&self) -> Rule {
                let $of = self;
                $rule
            }
        }
    )*};
}

params! {
    ParamsSGD: of => match of.momentum {
        0. => Rule::Descent,
        momentum => Rule::Momentum { momentum, is_nesterov: of.is_nesterov },
    };
    ParamsAdam: of => Rule::Adam { beta1: of.beta1, beta2: of.beta2, eps: of.eps, is_decoupled: false };
    ParamsAdamW: of => Rule::Adam { beta1: of.beta1, beta2: of.beta2, eps: of.eps, is_decoupled: true };
    ParamsLion: of => Rule::Lion { beta1: of.beta1, beta2: of.beta2 };
}
