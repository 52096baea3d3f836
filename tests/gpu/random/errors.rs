//! Errors beside double precision.

use candle::{DType, Device, Result, Tensor};

/// Roundings that count as none.
const LEAST: f64 = 1e-3;

/// Errors of candle's results and of an executor's, in roundings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Errors {
    squares: [f64; 2],
    most: [f64; 2],
    numbers: f64,
    /// Of each input with any error the logarithm of the root of its mean square, added up.
    logarithms: [f64; 2],
    inputs: f64,
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
        if rms != [0.; 2] {
            errors.logarithms = rms.map(|rms| rms.max(LEAST).ln());
            errors.inputs = 1.;
        }
        let is_told = numbers > 0. && rms[0] * unit(dtype) < 1. / 16.;
        Ok(Ok(if is_told { errors } else { Self::default() }))
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        let each =
            |of: fn(&Self) -> [f64; 2], join: fn(f64, f64) -> f64| [0, 1].map(|at| join(of(&self)[at], of(&other)[at]));
        Self {
            squares: each(|of| of.squares, |a, b| a + b),
            most: each(|of| of.most, f64::max),
            numbers: self.numbers + other.numbers,
            logarithms: each(|of| of.logarithms, |a, b| a + b),
            inputs: self.inputs + other.inputs,
            worst: if other.most[1] > self.most[1] { other.worst } else { self.worst },
        }
    }

    fn rms(&self) -> [f64; 2] {
        self.squares.map(|squares| (squares / self.numbers.max(1.)).sqrt())
    }

    /// The geometric mean of inputs with errors.
    fn typical(&self) -> [f64; 2] {
        self.logarithms.map(|logarithms| (logarithms / self.inputs.max(1.)).exp())
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
    /// differ by a hundred times, and the largest ones decide the mean of all squares. So that may be twice as large, if the geometric mean of
    /// inputs is not: less accurate operators are so on most inputs.
    pub fn reason(&self, room: f64, least: [f64; 2]) -> Option<String> {
        let ([candle, own], [candles_most, most]) = (self.rms(), self.most);
        let (candle, candles_most) = (candle.max(least[0]), candles_most.max(least[1]));
        let [candles_typical, typical] = self.typical();
        let limit = |candle: f64| room * (1.3 * candle.max(least[0]) + 0.3);
        let is_typical = typical > limit(candles_typical);
        let is_wrong = own > limit(candle) && (is_typical || own > 2. * limit(candle));
        (is_wrong || most > limit_of_most(room, candles_most)).then(|| {
            format!(
                "{own:.3} roundings, {typical:.3} on most inputs, at most {most:.2}; candle's {candle:.3}, {candles_typical:.3}, at most \
                 {candles_most:.2}"
            )
        })
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
