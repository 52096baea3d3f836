//! Errors of a result beside double precision.

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

/// The root of the mean squared difference, relative to candle's, of these sums of squares.
pub(super) fn relative(differences: f64, squares: f64) -> f64 {
    (differences / squares.max(f64::MIN_POSITIVE)).sqrt()
}
