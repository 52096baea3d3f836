//! A moving average.

use candle::Tensor;

/// A moving average, and what it moves towards.
pub(crate) struct Average<'a> {
    pub of: &'a Tensor,
    pub new: &'a Tensor,
    /// The part of it that stays, and that of what is new.
    pub parts: [f64; 2],
}
