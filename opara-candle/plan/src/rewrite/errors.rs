//! Errors of a result beside double precision.

use serde::{Deserialize, Serialize};

/// How far a result is from double precision.
///
/// The error of an element counts as a multiple of `u · max(|r|, rms r)`: `r` is the result in double precision and `u` the type's
/// unit roundoff (2^-11 in f16, 2^-8 in bf16, 2^-24 in f32). Elements that are tiny beside the others count by those, since
/// sums cancel to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Root of the mean square.
    pub rms: f64,
    /// The largest.
    pub max: f64,
}

/// Errors of the recorded launches' result and of the changed one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Those of the recorded launches.
    pub candle: Errors,
    /// Those of the changed ones.
    pub other: Errors,
    /// The type's unit roundoff.
    pub unit: f64,
    /// How far the two results are from each other at most, relative to the root of the mean square.
    pub apart: f64,
}

impl Compared {
    /// Of these errors, the recorded launches' first, in units of this roundoff.
    pub fn new(unit: f64, [candle, other]: [Errors; 2]) -> Self {
        Self { candle, other, unit, apart: unit * (candle.rms + other.rms + 1.) }
    }

    /// The one whose result is farther from double precision, whatever the types; as far apart as either.
    #[must_use]
    pub fn or_worse(self, other: Self) -> Self {
        let is_worse = other.unit * other.other.rms >= self.unit * self.other.rms;
        Self { apart: self.apart.max(other.apart), ..if is_worse { other } else { self } }
    }
}
