//! Element by element: slow for large tensors, but it tells which element is wrong.

use candle::{DType, Result, Tensor};
use opara_plan::rewrite::Errors;

/// The elements, converted where they are: that takes a GPU no time.
fn on_host(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// The errors of candle's result and of another one.
///
/// # Errors
/// The inner one says which element is wrong.
pub(super) fn errors(
    unit: f64,
    [reference, candle, other]: [&Tensor; 3],
) -> Result<std::result::Result<[Errors; 2], String>> {
    Ok(errors_of(unit, &on_host(reference)?, &on_host(candle)?, &on_host(other)?))
}

fn errors_of(unit: f64, reference: &[f64], candle: &[f64], other: &[f64]) -> std::result::Result<[Errors; 2], String> {
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
    Ok([errors(|(r, c, _)| (r, c)), errors(|(r, _, o)| (r, o))])
}

/// Whether a result is NaN, and infinite, where candle's is.
///
/// # Errors
/// The inner one says where it is not.
pub(super) fn same_kinds(candle: &Tensor, other: &Tensor) -> Result<std::result::Result<(), String>> {
    let (candle, other) = (on_host(candle)?, on_host(other)?);
    let is_same = |(c, o): (&f64, &f64)| c.is_nan() == o.is_nan() && (o.is_finite() || o.is_nan() || c == o);
    Ok(match candle.iter().zip(&other).position(|pair| !is_same(pair)) {
        None => Ok(()),
        Some(at) => Err(format!("element {at} is {} where candle's is {}", other[at], candle[at])),
    })
}

/// How far a result is from candle's where that is finite, relative to it.
///
/// # Errors
/// The inner one says which element is wrong.
pub(super) fn distance(candle: &Tensor, other: &Tensor) -> Result<std::result::Result<f64, String>> {
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
    Ok(Ok(relative(differences, squares)))
}

/// The root of the mean squared difference, relative to candle's, of these sums of squares.
pub(super) fn relative(differences: f64, squares: f64) -> f64 {
    (differences / squares.max(f64::MIN_POSITIVE)).sqrt()
}
