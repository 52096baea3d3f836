//! Zeros around images.

use candle::{Result, Tensor};

use super::window::Padding;
use crate::cpu::record::apply;

/// `(batch, channels, h, w)` with zeros around it.
///
/// # Errors
/// A tensor of another rank.
pub fn pad(x: &Tensor, padding: Padding) -> Result<Tensor> {
    let Padding { top, bottom, left, right } = padding;
    x.dims4()?;
    apply("pad", &[x], 0, move |t| t[0].pad_with_zeros(2, top, bottom)?.pad_with_zeros(3, left, right))
}
