//! Functions of f32 without branches and calls, so that loops over arrays of elements become vector code. Their bits are the same
//! for every width of vectors.

/// Beyond these, the result is infinite or zero.
const EXP_RANGE: (f32, f32) = (-104., 89.);

/// `1.5 * 2^23`: the sum with a number below 2^22 is rounded to an integer, which the low bits of the sum hold.
const ROUND: f32 = 12_582_912.;

/// `ln 2` as a sum, whose first part has few digits: its product with a small integer is exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);

/// The polynomial `(exp(r) - 1 - r) / r^2` for `|r| <= ln 2 / 2`, from the highest power down (Moshier, Cephes, `expf`).
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];

/// Up to here the error function is `x + x` times the polynomial [`ERF`] in `x^2`. From here on it is one minus the exponential of
/// `t` times [`ERF_TAIL`] minus `t`, where `t` is the absolute value (Juffa). From the highest powers down.
const ERF_SPLIT: f32 = 0.921_875;
const ERF: [f32; 6] =
    [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1];
const ERF_TAIL: [f32; 7] =
    [-1.728_534_7e-5, 3.831_971_3e-4, -3.883_964_4e-3, 2.425_462_2e-2, -1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1];

/// The polynomial of these coefficients, from the highest power down.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, *coefficient);
    }
    sum
}

/// `min(max(x, low), high)`, and NaN for NaN.
#[inline(always)]
fn clamped(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high {
        high
    } else {
        x
    }
}

/// `e^x`, to 2 units in the last place.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = clamped(x, EXP_RANGE.0, EXP_RANGE.1);
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2.1, n.mul_add(-LN_2.0, x));
    let power = polynomial(EXP, r).mul_add(r * r, r) + 1.;
    // 2^n in two steps, so that neither leaves the normal numbers where the result does.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let two_to = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

/// The error function, to 2 units in the last place.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let t = x.abs();
    let inner = polynomial(ERF, x * x).mul_add(x, x);
    let outer = (1. - exp(polynomial(ERF_TAIL, t).mul_add(t, -t))).copysign(x);
    // NaN stays NaN in the inner branch.
    if t > ERF_SPLIT {
        outer
    } else {
        inner
    }
}

/// Gaussian error linear unit.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1. + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Gaussian error linear unit, tanh approximation. `(1 + tanh(u)) / 2` is the logistic function of `2 u`.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769_2;
    logistic_times(x, TWICE_SQRT_2_OVER_PI * x * (x * x).mul_add(0.044715, 1.))
}

/// `x` times the logistic function of `x`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    logistic_times(x, x)
}

#[inline(always)]
fn logistic_times(x: f32, u: f32) -> f32 {
    x / (1. + exp(-u))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 997th number.
    fn numbers() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(997).map(f32::from_bits).filter(|x| !x.is_nan())
    }

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        for x in numbers().chain([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0., -0., 88.72284, -103.97]) {
            let (got, exact) = (exp(x), f64::from(x).exp());
            let expected = exact as f32;
            let unit = if expected < f32::MIN_POSITIVE {
                f64::from(f32::from_bits(1))
            } else {
                f64::from(f32::from_bits(expected.to_bits() + 1)) - f64::from(expected)
            };
            let close = (f64::from(got) - exact).abs() <= 2. * unit;
            assert!(close || got == expected, "exp({x:e}) is {expected:e}, not {got:e}");
        }
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY), exp(0.)), (f32::INFINITY, 0., 1.));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn activations_follow_their_definition() {
        let logistic = |u: f64| 1. / (1. + (-u).exp());
        for x in numbers() {
            let exact = f64::from(x);
            let twice = 2. * (2. / std::f64::consts::PI).sqrt() * (exact + 0.044715 * exact.powi(3));
            let erf = candle::cpu::erf::erf_f64(exact / std::f64::consts::SQRT_2);
            let cases = [
                (gelu_erf(x), 0.5 * exact * (1. + erf), "gelu_erf"),
                (gelu(x), exact * logistic(twice), "gelu"),
                (silu(x), exact * logistic(exact), "silu"),
            ];
            for (got, expected, name) in cases {
                // Plain arithmetic at the ends of the range: an infinity times zero is NaN.
                let close = (f64::from(got) - expected).abs() <= 2e-7 * exact.abs().max(1e-30);
                assert!(
                    close || got == expected as f32 || x.is_infinite(),
                    "{name}({x:e}) is {expected:e}, not {got:e}"
                );
            }
        }
        for function in [gelu_erf, gelu, silu] {
            assert_eq!(function(f32::INFINITY), f32::INFINITY);
            assert!(function(f32::NAN).is_nan());
        }
    }
}
