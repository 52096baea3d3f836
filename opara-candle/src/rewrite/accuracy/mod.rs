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

/// The same where a rounding of its operands moves a result as far: half of its squares are errors.
const NOISE: f64 = std::f64::consts::FRAC_1_SQRT_2;

/// Times candle's error that a result's may be, and roundings besides: the root of the mean square, and the largest.
const RMS: [f64; 2] = [1.05, 0.05];
const MAX: [f64; 2] = [1.5, 1.];

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

/// How candle's errors scatter: its own on some operands, and those on the same operands, moved by a rounding.
#[derive(Debug)]
pub(super) struct Scatter {
    /// Those of the run itself come first.
    pub errors: Vec<Errors>,
    /// How far moved operands move the result, relative to the root of the mean square.
    pub moved: f64,
}

impl Scatter {
    /// Holds a result against double precision where candle's own errors tell little: if they differ by more than a result may be less
    /// accurate, it is luck whose errors are smaller. It may be less accurate by as much as they differ, then. A result that
    /// double precision does not give is candle's all the same if a rounding of the operands moves it as far.
    ///
    /// # Errors
    /// The inner one says why the result may not stand for candle's.
    pub fn compare(&self, tensors: [&Tensor; 3]) -> Result<std::result::Result<Compared, String>> {
        let unit = unit(tensors[1].dtype());
        let judged = errors(unit, tensors)?.and_then(|[_, other]| judged_among(unit, self, other));
        let apart = distance(tensors[1], tensors[2])?;
        // What is farther than may be explained is so far exactly.
        let of = |compared: Compared| Ok(Compared { apart: compared.apart.min(apart?.max(EXPLAINED)), ..compared });
        Ok(judged.and_then(of))
    }
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
    judged_among(unit, &Scatter { errors: vec![candle], moved: 0. }, other)
}

/// How many times the largest of candle's errors may be the least, or another one the largest, by luck.
const LUCK: f64 = 2.;

/// Whether a result's errors are so near candle's that which are smaller may be luck.
pub(super) fn may_be_luck(tensors: [&Tensor; 3]) -> Result<bool> {
    let is_near = |[candle, other]: [Errors; 2]| other.rms <= RMS[0] * LUCK * LUCK * candle.rms + RMS[1];
    Ok(errors(unit(tensors[1].dtype()), tensors)?.is_ok_and(is_near))
}

fn judged_among(unit: f64, of: &Scatter, other: Errors) -> std::result::Result<Compared, String> {
    let candle = of.errors.first().copied().unwrap_or_default();
    let explained = (2. * of.moved).clamp(EXPLAINED, NOISE);
    if candle.rms * unit > explained {
        return Err(format!(
            "double precision does not give candle's results: they differ by {:.2e}{}",
            candle.rms * unit,
            if of.moved > 0. { format!(", and a rounding moves them by {:.2e}", of.moved) } else { String::new() }
        ));
    }
    let [rms, max] =
        [|of: &Errors| of.rms, |of: &Errors| of.max].map(|pick| of.errors.iter().map(pick).collect::<Vec<_>>());
    let among = |all: &[f64]| match all {
        [_] => String::new(),
        all => format!(" ({all:.3?} where operands move by a rounding)"),
    };
    // What is errors for the most part is no result, however candle's scatter.
    let most = most_beside(&rms, RMS).min((RMS[0] * explained / unit).max(RMS[0] * candle.rms + RMS[1]));
    if other.rms > most {
        return Err(format!("its mean error is {:.3} roundings, candle's {:.3}{}", other.rms, candle.rms, among(&rms)));
    }
    if other.max > most_beside(&max, MAX) {
        return Err(format!(
            "its largest error is {:.3} roundings, candle's {:.3}{}",
            other.max,
            candle.max,
            among(&max)
        ));
    }
    Ok(Compared::new(unit, [candle, other]))
}

/// The largest error that is no less accurate beside these of candle's, of which the first one is that of the same operands. If they
/// differ by more than this would allow, one is luck, and the next may differ from the largest as that does from the least.
fn most_beside(candle: &[f64], [factor, more]: [f64; 2]) -> f64 {
    let own = candle.first().copied().unwrap_or_default();
    let (least, most) = candle.iter().fold((own, own), |(least, most), &of| (least.min(of), most.max(of)));
    let is_luck = most > factor * least + more;
    factor * if is_luck { most * (most / least).min(LUCK) } else { own } + more
}

/// Whether results are [near](near) candle's and NaN or infinite where these are. Integers have to be equal.
///
/// # Errors
/// The inner one says why not.
pub(crate) fn near_in_kind(
    candle: &Tensor,
    other: &Tensor,
    apart: [f64; 2],
) -> Result<std::result::Result<(), String>> {
    match same_kinds(candle, other)? {
        Ok(()) => near(candle, other, if candle.dtype().is_float() { apart } else { [0.; 2] }),
        different => Ok(different),
    }
}

/// Whether results are near candle's, if what they come from is apart by so much, all runs together and the one that is farthest: what is
/// done to its errors is not known, so there is room for sixteen times as much, and for as many roundings of their type. But not beyond
/// what may be [explained](EXPLAINED), or beyond what the farthest run is apart, if that is less than [noise](NOISE).
///
/// # Errors
/// The inner one says why not: then launches are not where they belong.
pub(crate) fn near(
    candle: &Tensor,
    other: &Tensor,
    [apart, most]: [f64; 2],
) -> Result<std::result::Result<(), String>> {
    const ROOM: f64 = 16.;
    let limit = (ROOM * apart.max(unit(candle.dtype()))).min(most.clamp(EXPLAINED, NOISE));
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
