//! The f32 matmuls on tensor cores of `matmul.cu`, emulated on the CPU: operands are rounded to TF32 bit by bit.
//!
//! An operand is split into two TF32 numbers, and one product becomes three. Numbers beyond 4e34, infinities and NaN
//! cannot be split. These tests prove that such operands never give a wrong number: the kernel sees NaN or a number
//! that is too large, and recomputes the result without tensor cores.

use proptest::prelude::*;

/// `SPLIT_SUM` of `tensor.cuh`.
const SPLIT_SUM: f32 = 1e38;
/// Columns per partial sum outside the tensor cores (`ROW` of `warpgroup.cuh`), and per instruction.
const ROW: usize = 32;
const DEPTH: usize = 8;

/// The two TF32 numbers that represent an f32 number.
#[derive(Debug, Clone, Copy)]
struct Tf32Split {
    high: f32,
    low: f32,
}

/// Rounds to 11 bits, as `Tf32Split::rounded` does.
fn rounded(x: f32) -> f32 {
    (-8192f32).mul_add(x, 8193. * x)
}

/// The value that tensor cores read.
fn tf32(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_e000)
}

impl Tf32Split {
    fn of(x: f32) -> Self {
        let high = rounded(x);
        Self { high, low: rounded(x - high) }
    }
}

/// `with_cut_off` of `matmul.cu`.
fn with_cut_off(sum: f32) -> f32 {
    let is_exact = sum.to_bits() & 0xff == 0;
    if is_exact {
        sum
    } else {
        sum.mul_add(0.75 * f32::EPSILON, sum)
    }
}

/// The behaviour of tensor cores if a sum exceeds the largest f32, which NVIDIA does not document.
#[derive(Debug, Clone, Copy)]
enum Overflow {
    Infinite,
    Saturated,
}

/// Rounds towards zero, as tensor cores do.
fn towards_zero(x: f64, overflow: Overflow) -> f32 {
    let nearest = x as f32;
    if nearest.is_infinite() && x.is_finite() {
        return match overflow {
            Overflow::Infinite => nearest,
            Overflow::Saturated => f32::MAX.copysign(nearest),
        };
    }
    if f64::from(nearest).abs() > x.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    }
}

/// One instruction. A product of TF32 numbers is exact in f64.
fn mma(sum: f32, a: &[f32], b: &[f32], overflow: Overflow) -> f32 {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(tf32(a)) * f64::from(tf32(b)));
    towards_zero(products.fold(f64::from(sum), |sum, product| sum + product), overflow)
}

/// One element of the result: its value, and was it computed by tensor cores?
fn product(x: &[f32], weight: &[f32], overflow: Overflow) -> (f32, bool) {
    let mut sum = 0f32;
    for (x, weight) in x.chunks(ROW).zip(weight.chunks(ROW)) {
        let of_x: Vec<_> = x.iter().copied().map(Tf32Split::of).collect();
        let of_weight: Vec<_> = weight.iter().copied().map(Tf32Split::of).collect();
        let add = |part, x: fn(&Tf32Split) -> f32, weight: fn(&Tf32Split) -> f32| {
            let [x, weight] = [(&of_x, x), (&of_weight, weight)].map(|(of, f)| of.iter().map(f).collect::<Vec<f32>>());
            x.chunks(DEPTH).zip(weight.chunks(DEPTH)).fold(part, |part, (a, b)| mma(part, a, b, overflow))
        };
        let part = add(0., |x| x.low, |weight| weight.high);
        let part = add(part, |x| x.high, |weight| weight.low);
        sum += add(part, |x| x.high, |weight| weight.high);
    }
    let sum = with_cut_off(sum);
    if sum.abs() < SPLIT_SUM {
        (sum, true)
    } else {
        (without_tensor_cores(x, weight), false)
    }
}

/// The same without tensor cores: `without_tensor_cores` of `matmul.cu`.
fn without_tensor_cores(x: &[f32], weight: &[f32]) -> f32 {
    x.iter().zip(weight).fold(0., |sum, (&x, &weight)| x.mul_add(weight, sum))
}

/// Asserts that an element is close to the result in f32.
fn check(x: &[f32], weight: &[f32]) {
    let terms = || x.iter().zip(weight).map(|(&x, &weight)| (f64::from(x), f64::from(weight)));
    let exact: f64 = terms().map(|(x, weight)| x * weight).sum();
    // Three products keep at least 20 bits of each term. Parts below 2^-136 are lost, and so are the roundings of three
    // sums below the smallest number.
    let size: f64 = terms().map(|(x, weight)| (x * weight).abs()).sum();
    let unseen: f64 =
        terms().map(|(x, weight)| 2f64.powi(-136) * (x.abs() + weight.abs()) + 3. * 2f64.powi(-149)).sum();
    for overflow in [Overflow::Infinite, Overflow::Saturated] {
        let (got, is_split) = product(x, weight, overflow);
        if x.iter().chain(weight).all(|operand| operand.is_finite()) {
            let error = (f64::from(got) - exact).abs();
            let most = 2f64.powi(-20) * size + 2. * unseen;
            // If some terms overflow and others cancel them, the f32 result depends on the order.
            let has_no_answer = size > f64::from(f32::MAX) && matches!(overflow, Overflow::Saturated);
            assert!(
                !is_split || has_no_answer || error <= most,
                "{x:?} * {weight:?} is {exact:e}, got {got:e} ({overflow:?})"
            );
        } else {
            assert!(!is_split, "{x:?} * {weight:?}: {got:e} by tensor cores ({overflow:?})");
        }
    }
}

#[test]
fn both_parts_sum_to_the_number_or_are_nan() {
    let largest = 4e34f32;
    for x in [0., -0., 1., -3.3, 1e-30, 65504., largest, -largest, f32::MIN_POSITIVE] {
        let Tf32Split { high, low } = Tf32Split::of(x);
        let seen = f64::from(tf32(high)) + f64::from(tf32(low));
        let error = (seen - f64::from(x)).abs();
        assert!(error <= 2f64.powi(-22) * f64::from(x).abs() + 2f64.powi(-136), "{x:e}: {seen:e}");
    }
    for x in [4.2e34, 1e35, 3e38, f32::MAX, f32::INFINITY, f32::NAN, f32::from_bits(0x7f80_0001)] {
        assert!(Tf32Split::of(x).low.is_nan() && Tf32Split::of(-x).low.is_nan(), "{x:e}");
    }
}

#[test]
fn extreme_operands_give_the_results_of_f32() {
    let largest_of_bf16 = f32::from_bits(0x7f7f_0000);
    let extremes = [
        0.,
        1.,
        1. + f32::EPSILON,
        1e-45,
        1e-40,
        f32::MIN_POSITIVE,
        1e-35,
        65504.,
        4e34,
        4.2e34,
        1e35,
        4.3e37,
        1e38,
        3e38,
        largest_of_bf16,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        f32::from_bits(0x7f80_0001),
    ];
    let signed = || extremes.into_iter().flat_map(|x| [x, -x]);
    for (of_x, of_weight) in signed().flat_map(|x| signed().map(move |weight| (x, weight))) {
        // Alone, among ordinary terms, and together with its opposite.
        for (columns, at) in [(4, 0), (40, 3), (40, 35)] {
            let mut x: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut weight: Vec<f32> = (0..columns).map(|i| (i as f32 * 1.3).cos()).collect();
            (x[at], weight[at]) = (of_x, of_weight);
            check(&x, &weight);
            (x[at + 1 - at % 2 * 2], weight[at + 1 - at % 2 * 2]) = (-of_x, of_weight);
            check(&x, &weight);
        }
    }
}

#[test]
fn infinities_stay_infinite_and_overflow_is_infinite() {
    let ones = [1f32; 8];
    for (first, expected) in
        [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, f32::NEG_INFINITY), (3e38, f32::INFINITY), (1e35, 1e35)]
    {
        let x = [first, if first == 3e38 { 3e38 } else { 0. }, 1., -2., 0., 0., 0., 0.];
        for overflow in [Overflow::Infinite, Overflow::Saturated] {
            let got = [product(&x, &ones, overflow).0, product(&ones, &x, overflow).0];
            assert!(got.iter().all(|&got| got == expected || (got - expected).abs() <= 1e28), "{first}: {got:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4096) })]

    #[test]
    fn any_operands_give_the_results_of_f32(bits in prop::collection::vec(any::<(u32, u32)>(), 1..72)) {
        let (x, weight): (Vec<_>, Vec<_>) = bits.into_iter().map(|(x, w)| (f32::from_bits(x), f32::from_bits(w))).unzip();
        check(&x, &weight);
    }

    #[test]
    fn sums_of_small_whole_numbers_are_exact(numbers in prop::collection::vec((-16i16..16, -16i16..16), 1..200)) {
        let (x, weight): (Vec<f32>, Vec<f32>) = numbers.iter().map(|&(x, w)| (f32::from(x), f32::from(w))).unzip();
        let sum: i32 = numbers.iter().map(|&(x, w)| i32::from(x) * i32::from(w)).sum();
        prop_assert_eq!(product(&x, &weight, Overflow::Infinite), (sum as f32, true));
    }

    #[test]
    fn ordinary_operands_use_tensor_cores(numbers in prop::collection::vec((-1e6f32..1e6, -1e6f32..1e6), 1..200)) {
        let (x, weight): (Vec<_>, Vec<_>) = numbers.into_iter().unzip();
        check(&x, &weight);
        prop_assert!(product(&x, &weight, Overflow::Infinite).1);
    }
}
