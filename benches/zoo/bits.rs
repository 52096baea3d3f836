//! Bitwise comparison of tensors on their device, and varied inputs for it.

use anyhow::{ensure, Result};
use candle::{DType, Tensor};

/// Varies inputs: each is rotated by `turn` elements, and floats are scaled down. Token ids stay valid.
pub fn varied(inputs: &[Tensor], turn: usize) -> candle::Result<Vec<Tensor>> {
    let varied = inputs.iter().map(|input| {
        let rolled = input.flatten_all()?.roll(turn as i32, 0)?.reshape(input.shape())?;
        if input.dtype().is_float() {
            rolled * (1. - turn as f64 / 64.)
        } else {
            Ok(rolled)
        }
    });
    varied.collect()
}

/// Counts the elements that differ bitwise, with NaN equal to NaN. The result is a scalar on the device, so that
/// counting does not synchronize. It is exact if it is 0.
pub fn differing(expected: &[Tensor], got: &[Tensor]) -> Result<Tensor> {
    ensure!(expected.len() == got.len() && !got.is_empty(), "{} outputs, not {}", got.len(), expected.len());
    let counts = expected.iter().zip(got).map(|(expected, got)| {
        let same_kind = expected.shape() == got.shape() && expected.dtype() == got.dtype();
        ensure!(
            same_kind,
            "{:?} of {:?}, not {:?} of {:?}",
            got.shape(),
            got.dtype(),
            expected.shape(),
            expected.dtype()
        );
        Ok(differences(expected, got)?.to_dtype(DType::F32)?.sum_all()?)
    });
    let counts = counts.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::stack(&counts, 0)?.sum_all()?)
}

/// Marks the elements that differ with 1.
fn differences(a: &Tensor, b: &Tensor) -> candle::Result<Tensor> {
    if !a.dtype().is_float() {
        return a.ne(b);
    }
    // The conversion of shorter floats is exact.
    let (a, b) = (a.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
    // Zeros of different signs compare as equal, but their reciprocals do not.
    let unequal = a.ne(&b)?.maximum(&a.recip()?.ne(&b.recip()?)?)?;
    let both_nan = a.ne(&a)?.minimum(&b.ne(&b)?)?;
    unequal.gt(&both_nan)
}

/// Are all elements finite?
pub fn finite(tensors: &[Tensor]) -> candle::Result<bool> {
    for tensor in tensors {
        // 0 for finite numbers, NaN for all others.
        let zeros = (tensor.to_dtype(DType::F32)? * 0.)?;
        if zeros.sum_all()?.to_scalar::<f32>()? != 0. {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Formats shapes for people.
pub fn shapes(tensors: &[Tensor]) -> String {
    tensors.iter().map(|t| format!("{:?}", t.dims())).collect::<Vec<_>>().join(" ")
}
