//! Errors beside double precision.

use candle::{DType, Device, Result, Tensor};

/// Roundings that count as none.
const LEAST: f64 = 1e-3;

/// Errors of candle's results and of an executor's, in roundings.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    squares: [f64; 2],
    most: [f64; 2],
    numbers: f64,
    /// Of each input the root of the mean square.
    of_inputs: Vec<[f64; 2]>,
    /// Where the executor's largest error is, with the result in double precision, candle's and its own.
    worst: (usize, [f64; 3]),
}

impl Errors {
    /// Those of results: in double precision, candle's and an executor's. None where candle's own errors are as large as results: they tell
    /// nothing. `mends` says whether it may give finite numbers where candle gives none.
    ///
    /// # Errors
    /// The inner one says which element is no finite number, or one, where candle's is otherwise.
    pub fn of(dtype: DType, mends: bool, tensors: [&Tensor; 3]) -> Result<std::result::Result<Self, String>> {
        let [reference, candle, ours] = tensors;
        let (reference, candle, ours) = (numbers(reference)?, numbers(candle)?, numbers(ours)?);
        let all = || reference.iter().zip(&candle).zip(&ours).map(|((r, c), o)| (*r, *c, *o));
        // Where a number on the way is as large as the type's largest, a rounding decides whether an infinity comes of it: in few elements beside
        // those where candle's own are too large.
        let has_too_large = all().any(|(r, c, _)| !c.is_finite() && r.is_finite());
        let mut at_edge = if has_too_large && dtype == DType::F16 { 1 + reference.len() / 1000 } else { 0 };
        for (at, (r, c, o)) in all().enumerate() {
            let is_same = c.is_nan() && o.is_nan() || c == o;
            // A number on the way was too large for the type, in both: which infinities came of it, and which differences of them, depends on
            // the numbers that are stored.
            let is_too_large = !c.is_finite() && r.is_finite();
            let is_explained =
                if o.is_finite() { mends || c.is_finite() || r.is_finite() } else { is_same || is_too_large };
            if !is_explained && at_edge > 0 && !o.is_nan() && r.is_finite() {
                at_edge -= 1;
            } else if !is_explained {
                return Ok(Err(format!("element {at} is {o}, candle's {c}, in double precision {r}")));
            }
        }
        let finite = || all().enumerate().filter(|(_, (r, c, o))| r.is_finite() && c.is_finite() && o.is_finite());
        let numbers = finite().count() as f64;
        let scale = (finite().map(|(_, (r, ..))| r * r).sum::<f64>() / numbers.max(1.)).sqrt();
        let mut errors = Self { numbers, ..Self::default() };
        for (at, (r, c, o)) in finite() {
            for (of, y) in [c, o].into_iter().enumerate() {
                let error = (y - r).abs() / (unit(dtype) * r.abs().max(scale).max(f64::MIN_POSITIVE));
                errors.squares[of] += error * error;
                if of == 1 && error > errors.most[of] {
                    errors.worst = (at, [r, c, o]);
                }
                errors.most[of] = errors.most[of].max(error);
            }
        }
        let rms = errors.rms();
        errors.of_inputs = vec![rms];
        let is_told = numbers > 0. && rms[0] * unit(dtype) < 1. / 16.;
        Ok(Ok(if is_told { errors } else { Self::default() }))
    }

    /// Both.
    pub fn and(&self, other: &Self) -> Self {
        let each =
            |of: fn(&Self) -> [f64; 2], join: fn(f64, f64) -> f64| [0, 1].map(|at| join(of(self)[at], of(other)[at]));
        let of_inputs = [&self.of_inputs[..], &other.of_inputs].concat();
        Self {
            of_inputs,
            squares: each(|of| of.squares, |a, b| a + b),
            most: each(|of| of.most, f64::max),
            numbers: self.numbers + other.numbers,
            worst: if other.most[1] > self.most[1] { other.worst } else { self.worst },
        }
    }

    fn rms(&self) -> [f64; 2] {
        self.squares.map(|squares| (squares / self.numbers.max(1.)).sqrt())
    }

    /// Are the executor's errors above this limit for candle's on most inputs, and not by the luck of some? The mean of the logarithms of what
    /// they are times the limit is above zero by twice its standard error.
    fn is_typically_above(&self, limit: impl Fn(f64) -> f64) -> bool {
        let count = self.of_inputs.len() as f64;
        let above = |[candle, own]: &[f64; 2]| (own.max(LEAST) / limit(*candle)).ln();
        let mean = self.of_inputs.iter().map(above).sum::<f64>() / count;
        let squares = self.of_inputs.iter().map(|of| (above(of) - mean).powi(2)).sum::<f64>();
        let standard_error = (squares / (count - 1.).max(1.) / count).sqrt();
        mean > 2. * standard_error
    }

    /// Is there any error to judge?
    pub fn tells(&self) -> bool {
        self.numbers > 0.
    }

    /// Why the executor's largest error is too large, as [`reason`](Self::reason) has it.
    pub fn extreme(&self, room: f64, least: [f64; 2]) -> Option<String> {
        let [candles, own] = self.most;
        (own > limit_of_most(room, candles.max(least[1])))
            .then(|| format!("at most {own:.2} roundings; candle's {candles:.2}"))
    }

    /// Candle's alone, for [`reason`](Self::reason).
    pub fn candles(&self) -> [f64; 2] {
        [self.rms()[0], self.most[0]]
    }

    /// Why the executor's results are less accurate than candle's, by more than other inputs explain, `room` times. Candle's errors count as
    /// `least` at least: the root of their mean square, and the largest. Where results rest on exponentials of large scores, errors of inputs
    /// differ by a hundred times, and the largest ones decide the mean of all squares. So that may be twice as large, where errors are not
    /// too large on most inputs: less accurate operators are so on most.
    pub fn reason(&self, room: f64, least: [f64; 2]) -> Option<String> {
        let ([candle, own], [candles_most, most]) = (self.rms(), self.most);
        let (candle, candles_most) = (candle.max(least[0]), candles_most.max(least[1]));
        let limit = |candle: f64| room * (1.3 * candle.max(least[0]) + 0.3);
        let is_wrong = own > limit(candle) && (own > 2. * limit(candle) || self.is_typically_above(limit));
        (is_wrong || most > limit_of_most(room, candles_most))
            .then(|| format!("{own:.3} roundings, at most {most:.2}; candle's {candle:.3}, at most {candles_most:.2}"))
    }
}

/// What the largest error may be, beside candle's.
fn limit_of_most(room: f64, candles: f64) -> f64 {
    room * (2.5 * candles + 3.)
}

/// Half the distance from one to the next number.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors of one number on each input: candle's, and an executor's.
    fn of(inputs: impl IntoIterator<Item = [f64; 2]>) -> Result<Errors> {
        let mut all = Errors::default();
        for [candle, own] in inputs {
            let number = |roundings: f64| Tensor::new(1. + roundings * unit(DType::F32), &Device::Cpu);
            let of = Errors::of(DType::F32, false, [&number(0.)?, &number(candle)?, &number(own)?])?;
            all = all.and(&of.expect("all are finite"));
        }
        Ok(all)
    }

    #[test]
    fn errors_count_that_are_larger_on_most_inputs() -> Result<()> {
        let fails = |errors: Errors| errors.reason(1., [0.; 2]).is_some();
        assert!(fails(of((1..=16).map(|at| [1. + 0.1 * f64::from(at), 4.]))?), "twice as large on each");
        assert!(!fails(of((1..=16).map(|at| [1. + 0.1 * f64::from(at), 2.]))?), "as large");
        let (small, large) = ([1., 1.2], [12., 24.]);
        assert!(!fails(of([large].into_iter().chain([small; 15]))?), "one rounding that decides");
        assert!(fails(of([[12., 48.]].into_iter().chain([small; 15]))?), "larger than any of candle's");
        assert!(fails(of([[1., 4.]])?), "there is no other input");
        let spread = (0..16).map(|at| if at % 4 == 0 { [2., 14.] } else { [8., 8.] });
        assert!(!fails(of(spread)?), "within the spread of inputs");
        Ok(())
    }
}
