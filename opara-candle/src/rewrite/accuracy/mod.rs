//! Judges whether a result is no less accurate than candle's, by double precision.

mod on_device;
mod on_host;
#[cfg(test)]
mod tests;

use candle::{DType, Result, Tensor};
use opara_plan::rewrite::{Compared, Errors};

/// candle's own results are no farther from double precision than this, relative to the root of the mean square: else double
/// precision computes something else.
pub(crate) const EXPLAINED: f64 = 1. / 8.;

/// Holds a result, and candle's, against double precision. A result is no less accurate than candle's if
///
/// - the root of its mean squared error is at most 1.05 times candle's plus 0.05 units,
/// - its largest error is at most 1.5 times candle's plus 1 unit,
/// - it is finite wherever candle's is, NaN only where candle's is, and infinite only where candle's is.
///
/// # Errors
/// The inner one says why the result may not stand for candle's.
pub(crate) fn compare(
    reference: &Tensor,
    candle: &Tensor,
    other: &Tensor,
) -> Result<std::result::Result<Compared, String>> {
    compared(unit(candle.dtype()), [reference, candle, other])
}

/// The same where the results that follow are off by much more than this one's roundings: by `noise`, relative to the root of the mean
/// square. Less than a thousandth of that is no less accurate.
///
/// # Errors
/// The inner one says why the result may not stand for candle's.
pub(super) fn compare_beside(noise: f64, tensors: [&Tensor; 3]) -> Result<std::result::Result<Compared, String>> {
    const FRACTION: f64 = 1e-3;
    let unit = unit(tensors[1].dtype());
    let judged = |errors: [Errors; 2]| match errors[1].rms.max(errors[1].max / 16.) * unit < FRACTION * noise {
        true => Ok(Compared::new(unit, errors)),
        false => judged(unit, errors),
    };
    Ok(errors(unit, tensors)?.and_then(judged))
}

fn compared(unit: f64, tensors: [&Tensor; 3]) -> Result<std::result::Result<Compared, String>> {
    Ok(errors(unit, tensors)?.and_then(|errors| judged(unit, errors)))
}

/// The errors of candle's result and of another one, beside a result in double precision, which comes first.
///
/// # Errors
/// The inner one says which element is wrong.
pub(super) fn errors(unit: f64, tensors: [&Tensor; 3]) -> Result<std::result::Result<[Errors; 2], String>> {
    match on_device::errors(unit, tensors)? {
        Some(errors) => Ok(Ok(errors)),
        None => on_host::errors(unit, tensors),
    }
}

/// Whether no element is finite.
pub(crate) fn has_no_finite(t: &Tensor) -> Result<bool> {
    on_device::has_no_finite(t)
}

/// Whether a result is NaN, and infinite, where candle's is.
///
/// # Errors
/// The inner one says where it is not.
pub(crate) fn same_kinds(candle: &Tensor, other: &Tensor) -> Result<std::result::Result<(), String>> {
    match on_device::are_same_kinds(candle, other)? {
        true => Ok(Ok(())),
        false => on_host::same_kinds(candle, other),
    }
}

/// Half the distance from one to the next number.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

/// Whether a result with these errors is no less accurate: candle's come first.
fn judged(unit: f64, [candle, other]: [Errors; 2]) -> std::result::Result<Compared, String> {
    if candle.rms * unit > EXPLAINED {
        return Err(format!(
            "double precision does not give candle's results: they differ by {:.2e}",
            candle.rms * unit
        ));
    }
    if other.rms > 1.05 * candle.rms + 0.05 {
        return Err(format!("its mean error is {:.3} roundings, candle's {:.3}", other.rms, candle.rms));
    }
    if other.max > 1.5 * candle.max + 1. {
        return Err(format!("its largest error is {:.3} roundings, candle's {:.3}", other.max, candle.max));
    }
    Ok(Compared::new(unit, [candle, other]))
}

/// Whether results are [near](near) candle's and NaN or infinite where these are. Integers have to be equal.
///
/// # Errors
/// The inner one says why not.
pub(crate) fn near_in_kind(candle: &Tensor, other: &Tensor, apart: f64) -> Result<std::result::Result<(), String>> {
    match same_kinds(candle, other)? {
        Ok(()) => near(candle, other, if candle.dtype().is_float() { apart } else { 0. }),
        different => Ok(different),
    }
}

/// Whether results are near candle's, if what they come from is apart by so much: what is done to its errors is not known, so there is room
/// for sixteen times as much, and for as many roundings of their type.
///
/// # Errors
/// The inner one says why not: then launches are not where they belong.
pub(crate) fn near(candle: &Tensor, other: &Tensor, apart: f64) -> Result<std::result::Result<(), String>> {
    const ROOM: f64 = 16.;
    let limit = (ROOM * apart.max(unit(candle.dtype()))).min(EXPLAINED);
    let is_near = |found: f64| match found <= limit {
        true => Ok(()),
        false => Err(format!("an output differs from candle's by {found:.2e}")),
    };
    Ok(distance(candle, other)?.and_then(is_near))
}

/// How far results are from candle's, relative to the root of the mean square.
///
/// # Errors
/// The inner one says which element is of another kind.
pub(crate) fn distance(candle: &Tensor, other: &Tensor) -> Result<std::result::Result<f64, String>> {
    match on_device::distance(candle, other)? {
        Some(found) => Ok(Ok(found)),
        None => on_host::distance(candle, other),
    }
}
