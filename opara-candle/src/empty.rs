//! Views without elements. candle's operators panic where such a view begins behind the memory of its tensor.

use std::borrow::Cow;

use candle::{Result, Tensor};

/// The tensor, or one of its own memory if it has no elements and is a view.
pub(crate) fn placed(t: Tensor) -> Result<Tensor> {
    if is_displaced(&t) {
        Tensor::zeros(t.shape(), t.dtype(), t.device())
    } else {
        Ok(t)
    }
}

/// [`placed`] of all.
pub(crate) fn all_placed(tensors: &[Tensor]) -> Result<Cow<'_, [Tensor]>> {
    if !tensors.iter().any(is_displaced) {
        return Ok(Cow::Borrowed(tensors));
    }
    tensors.iter().cloned().map(placed).collect::<Result<_>>().map(Cow::Owned)
}

/// Calls an operator with its operands, [`placed`].
pub(crate) fn with_placed<T>(operands: &[&Tensor], f: impl FnOnce(&[&Tensor]) -> Result<T>) -> Result<T> {
    if !operands.iter().any(|operand| is_displaced(operand)) {
        return f(operands);
    }
    let placed = operands.iter().map(|&operand| placed(operand.clone())).collect::<Result<Vec<_>>>()?;
    f(&placed.iter().collect::<Vec<_>>())
}

fn is_displaced(t: &Tensor) -> bool {
    t.elem_count() == 0 && (t.layout().start_offset() > 0 || !t.is_contiguous())
}
