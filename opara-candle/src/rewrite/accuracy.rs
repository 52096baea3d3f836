//! What "no less accurate" means, and whether it holds: of results in place of candle's, by double precision.

use candle::{DType, Result, Tensor};

/// How far a result may be from double precision, in units of the type's rounding, where candle's is so far.
///
/// The error of an element counts as a multiple of `u · max(|r|, rms r)`: `r` is the result in double precision and `u` the type's
/// unit roundoff (2^-11 in f16, 2^-8 in bf16, 2^-24 in f32). Elements that are tiny beside the others count by those, since
/// sums cancel to them. A result is no less accurate than candle's if
///
/// - the root of its mean squared error is at most 1.05 times candle's plus 0.05 units,
/// - its largest error is at most 1.5 times candle's plus 1 unit,
/// - it is finite wherever candle's is, NaN only where candle's is, and infinite only where candle's is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Errors {
    /// Root of the mean square.
    pub rms: f64,
    /// The largest.
    pub max: f64,
}

/// Errors of candle's result and of another one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Compared {
    pub candle: Errors,
    pub other: Errors,
    /// Of the type.
    unit: f64,
}

impl Compared {
    /// How far the two are from each other at most, by their errors, relative to the root of the mean square.
    pub fn apart(&self) -> f64 {
        self.unit * (self.candle.rms + self.other.rms + 1.)
    }
}

/// candle's own results are no farther from double precision than this, relative to the root of the mean square: else double
/// precision computes something else.
const EXPLAINED: f64 = 1. / 8.;

/// Holds a result, and candle's, against double precision.
///
/// # Errors
/// The inner one says why the result may not stand for candle's.
pub(crate) fn compare(
    reference: &Tensor,
    candle: &Tensor,
    other: &Tensor,
) -> Result<std::result::Result<Compared, String>> {
    let unit = unit(candle.dtype());
    Ok(compared(unit, &on_host(reference)?, &on_host(candle)?, &on_host(other)?))
}

/// The elements, converted where they are: that takes a GPU no time.
fn on_host(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// Whether no element is finite.
pub(crate) fn has_no_finite(t: &Tensor) -> Result<bool> {
    Ok(!on_host(t)?.iter().any(|value| value.is_finite()))
}

/// Whether a result is NaN, and infinite, where candle's is.
///
/// # Errors
/// The inner one says where it is not.
pub(crate) fn same_kinds(candle: &Tensor, other: &Tensor) -> Result<std::result::Result<(), String>> {
    let (candle, other) = (on_host(candle)?, on_host(other)?);
    let is_same = |(c, o): (&f64, &f64)| c.is_nan() == o.is_nan() && (o.is_finite() || o.is_nan() || c == o);
    Ok(match candle.iter().zip(&other).position(|pair| !is_same(pair)) {
        None => Ok(()),
        Some(at) => Err(format!("element {at} is {} where candle's is {}", other[at], candle[at])),
    })
}

/// Half the distance from one to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

fn compared(unit: f64, reference: &[f64], candle: &[f64], other: &[f64]) -> std::result::Result<Compared, String> {
    let all = || reference.iter().zip(candle).zip(other).map(|((r, c), o)| (*r, *c, *o));
    for (at, (r, c, o)) in all().enumerate() {
        let same_kind = c.is_nan() && o.is_nan() || c == o;
        if !o.is_finite() && !same_kind {
            return Err(format!("element {at} is {o} where candle's is {c}"));
        }
        if o.is_finite() && !c.is_finite() && !r.is_finite() {
            return Err(format!("element {at} is {o} where candle's is {c} and double precision gives {r}"));
        }
    }
    let finite = || all().filter(|(r, c, o)| r.is_finite() && c.is_finite() && o.is_finite());
    let count = finite().count() as f64;
    if count == 0. {
        return Err("no element is finite, so nothing can be compared".into());
    }
    let scale = (finite().map(|(r, ..)| r * r).sum::<f64>() / count).sqrt();
    // All zeros: any other number is wrong.
    let of = |r: f64, y: f64| (y - r).abs() / (unit * r.abs().max(scale).max(f64::MIN_POSITIVE));
    let errors = |pick: fn((f64, f64, f64)) -> (f64, f64)| {
        let (mut squares, mut max) = (0., 0f64);
        for (r, y) in finite().map(pick) {
            let error = of(r, y);
            squares += error * error;
            max = max.max(error);
        }
        Errors { rms: (squares / count).sqrt(), max }
    };
    let (candle, other) = (errors(|(r, c, _)| (r, c)), errors(|(r, _, o)| (r, o)));
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
    Ok(Compared { candle, other, unit })
}

/// Whether the outputs of a whole pass are near candle's, if its runs were apart by so much each: what a run does to the errors of
/// those before it is not known, so there is room for that.
///
/// # Errors
/// The inner one says why not: then launches are not where they belong.
pub(crate) fn near(candle: &Tensor, other: &Tensor, apart: f64) -> Result<std::result::Result<(), String>> {
    const ROOM: f64 = 16.;
    let (candle, other) = (on_host(candle)?, on_host(other)?);
    let (mut squares, mut differences) = (0., 0.);
    for (at, (c, o)) in candle.iter().zip(&other).enumerate() {
        if c.is_finite() && !o.is_finite() {
            return Ok(Err(format!("element {at} of an output is {o} where candle's is {c}")));
        }
        if c.is_finite() {
            squares += c * c;
            differences += (c - o) * (c - o);
        }
    }
    let (found, limit) = ((differences / f64::max(squares, f64::MIN_POSITIVE)).sqrt(), (ROOM * apart).min(EXPLAINED));
    Ok(if found <= limit { Ok(()) } else { Err(format!("an output differs from candle's by {found:.2e}")) })
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;

    const U: f64 = 1. / 2048.;

    /// Errors in units, of results around one.
    fn verdict(candle: &[f64], other: &[f64]) -> std::result::Result<Compared, String> {
        let reference = vec![1.; candle.len()];
        let results = |errors: &[f64]| errors.iter().map(|error| 1. + error * U).collect::<Vec<_>>();
        compared(U, &reference, &results(candle), &results(other))
    }

    #[test]
    fn what_is_as_near_is_taken_and_what_is_farther_is_not() {
        assert!(verdict(&[0.5, -0.5, 0.4], &[0.5, 0.5, -0.5]).is_ok());
        assert!(verdict(&[0.; 3], &[0.04, -0.05, 0.05]).is_ok(), "a hair");
        assert!(verdict(&[0.5; 4], &[0.6; 4]).unwrap_err().contains("mean error"));
        let mut one_off = [0.5; 100];
        one_off[7] = 2.;
        assert!(verdict(&[0.5; 100], &one_off).unwrap_err().contains("largest"));
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let of = |reference: [f64; 2], candle: [f64; 2], other: [f64; 2]| compared(U, &reference, &candle, &other);
        assert!(of([1., nan], [1., nan], [1., nan]).is_ok());
        assert!(of([1., inf], [1., inf], [1., inf]).is_ok());
        assert!(of([1., 70000.], [1., inf], [1., 70000.]).is_ok(), "candle's overflowed on the way");
        for (candle, other) in [(1., nan), (1., inf), (inf, nan), (inf, -inf), (nan, inf)] {
            assert!(of([1., 1.], [1., candle], [1., other]).is_err(), "{candle} {other}");
        }
        assert!(of([1., nan], [1., nan], [1., 1.]).is_err());
        assert!(of([nan; 2], [nan; 2], [nan; 2]).is_err(), "nothing to compare");
    }

    #[test]
    fn outputs_that_are_something_else_are_noticed() -> Result<()> {
        let of = |values: [f32; 3]| Tensor::new(&values, &Device::Cpu);
        let candle = of([1., 2., f32::INFINITY])?;
        assert!(near(&candle, &of([1.001, 2., 7.])?, 1e-3)?.is_ok());
        assert!(near(&candle, &of([1.1, 2., 7.])?, 1e-3)?.is_err(), "too far");
        assert!(near(&candle, &of([2., 1., 7.])?, 1.)?.is_err(), "whatever the runs' errors");
        assert!(near(&candle, &of([f32::NAN, 2., 7.])?, 1.)?.is_err());
        Ok(())
    }

    #[test]
    fn tiny_elements_count_by_the_others() {
        let reference = [1., 1., 1., 1e-9];
        assert!(compared(U, &reference, &[1., 1., 1., 0.], &[1., 1., 1., 1e-5]).is_ok());
    }

    #[test]
    fn a_reference_of_something_else_is_noticed() {
        let reference = [1., -1., 2., 3.];
        assert!(compared(U, &reference, &[2., 1., 2., 3.], &reference).unwrap_err().contains("does not give"));
    }
}
