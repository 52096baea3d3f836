//! Schedules of the learning rate.

use candle::Result;

use super::check::finite;
use crate::ops::optimizer::rule::place;

/// How the learning rate goes from step to step. The device computes it, so that a captured step follows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// As it is set, after `warm_up` steps in which it grows in equal parts.
    Constant {
        /// Steps of warming up.
        warm_up: u64,
    },
    /// A straight line from the end of warming up to `remains` times the rate at step `steps`.
    Linear {
        /// Steps of warming up.
        warm_up: u64,
        /// All steps.
        steps: u64,
        /// The part of the rate at the end.
        remains: f64,
    },
    /// Half a cosine (Loshchilov and Hutter, 2017) from the end of warming up to `remains` times the rate at step `steps`.
    Cosine {
        /// Steps of warming up.
        warm_up: u64,
        /// All steps.
        steps: u64,
        /// The part of the rate at the end.
        remains: f64,
    },
    /// The inverse square root of the step (Vaswani et al., 2017), which is 1 at the end of warming up.
    InverseSquareRoot {
        /// Steps of warming up.
        warm_up: u64,
    },
}

impl Schedule {
    /// # Errors
    /// A part that remains which is no finite number.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Linear { remains, .. } | Self::Cosine { remains, .. } => {
                finite("part of the rate that remains", remains)
            }
            Self::Constant { .. } | Self::InverseSquareRoot { .. } => Ok(()),
        }
    }

    /// Writes it to a control block.
    pub(super) fn write(self, control: &mut [f64]) {
        let (kind, warm_up, total, remains) = match self {
            Self::Constant { warm_up } => (0., warm_up, 0, 1.),
            Self::Linear { warm_up, steps, remains } => (1., warm_up, steps, remains),
            Self::Cosine { warm_up, steps, remains } => (2., warm_up, steps, remains),
            Self::InverseSquareRoot { warm_up } => (3., warm_up, 0, 1.),
        };
        control[place::SCHEDULE] = kind;
        control[place::WARM_UP] = warm_up as f64;
        control[place::TOTAL] = total as f64;
        control[place::REMAINS] = remains;
    }
}
