//! Numbers that follow from the position.

use crate::trace::Element;

/// A number that follows from the position: each token adds as much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtPosition {
    /// The number at position 0.
    pub zero: f64,
    /// The difference that each token makes.
    pub step: f64,
}

impl AtPosition {
    /// The one that has these values at two positions, the lower one first; `None` if there is no finite one.
    pub fn through([a, b]: [f64; 2], positions: [u64; 2]) -> Option<Self> {
        let apart = positions[1].checked_sub(positions[0]).filter(|apart| *apart > 0)?;
        let step = (b - a) / apart as f64;
        let number = Self { zero: a - step * positions[0] as f64, step };
        (number.zero.is_finite() && step.is_finite()).then_some(number)
    }

    /// Its value at a position.
    pub fn at(self, position: u64) -> f64 {
        self.zero + self.step * position as f64
    }

    /// Whether it has another one's values at a position and at the one before, but for their rounding to a type of elements.
    pub(super) fn is_near(self, known: Self, position: u64, element: Element) -> bool {
        let unit = match element {
            Element::F16 => 2f64.powi(-10),
            Element::Bf16 => 2f64.powi(-7),
            _ => f32::EPSILON.into(),
        };
        let is_same = |position| {
            let (own, known) = (self.at(position), known.at(position));
            (own - known).abs() <= 2. * unit * own.abs().max(known.abs())
        };
        is_same(position) && is_same(position.saturating_sub(1))
    }
}
