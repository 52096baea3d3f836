use candle::Device;
use proptest::prelude::*;

use super::*;

const U: f64 = 1. / 2048.;

fn tensor(values: &[f64]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn are_close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// The same totals on a GPU, if there is one.
#[cfg(feature = "cuda")]
fn agrees_on_gpu(unit: f64, tensors: [&Tensor; 3], expected: Option<&[Errors; 2]>) {
    let Some(device) = crate::test_device::gpu() else { return };
    let tensors = tensors.map(|tensor| tensor.to_device(&device).unwrap());
    match (on_device::errors(unit, tensors.each_ref()).unwrap(), expected) {
        (Some(got), Some(expected)) => got.iter().zip(expected).for_each(|(got, expected)| {
            assert!(are_close(got.rms, expected.rms) && are_close(got.max, expected.max), "{got:?} {expected:?}");
        }),
        (got, expected) => assert_eq!(got.is_some(), expected.is_some(), "{got:?} {expected:?}"),
    }
}

/// By both ways, which have to agree.
fn compared(unit: f64, reference: &[f64], candle: &[f64], other: &[f64]) -> std::result::Result<Compared, String> {
    let tensors = [reference, candle, other].map(tensor);
    let tensors = tensors.each_ref();
    let host = on_host::errors(unit, tensors).unwrap();
    let device = on_device::errors(unit, tensors).unwrap();
    #[cfg(feature = "cuda")]
    agrees_on_gpu(unit, tensors, device.as_ref());
    match (device, &host) {
        (Some(device), Ok(host)) => {
            for (device, host) in device.iter().zip(host) {
                assert!(are_close(device.rms, host.rms) && are_close(device.max, host.max), "{device:?} {host:?}");
            }
        }
        (Some(device), Err(reason)) => panic!("{device:?} though {reason}"),
        // Numbers that cannot be squared are left to the host.
        (None, Ok(host)) => assert!(
            reference.iter().chain(candle).chain(other).any(|x| x.is_finite() && x.abs() > 1e100)
                || host.iter().any(|errors| errors.max > 1e100),
            "{host:?}"
        ),
        (None, Err(_)) => {}
    }
    let both = super::compared(unit, tensors).unwrap();
    let judged = host.and_then(|host| judged(unit, host));
    assert_eq!(both.is_ok(), judged.is_ok(), "{both:?} {judged:?}");
    both
}

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
fn the_worse_of_two_types_is_farther_from_double_precision() {
    let of = |unit: f64, roundings: f64| {
        let result = [1. + roundings * unit, 1.];
        compared(unit, &[1., 1.], &result, &result).unwrap()
    };
    let (half, single) = (of(U, 1.), of(2f64.powi(-24), 20.));
    assert_eq!(
        [half.or_worse(single), single.or_worse(half), Compared::default().or_worse(single)],
        [half, half, single]
    );
}

#[test]
fn outputs_that_are_something_else_are_noticed() -> Result<()> {
    let of = |values: [f32; 3]| Tensor::new(&values, &Device::Cpu);
    let candle = of([1., 2., f32::INFINITY])?;
    assert!(near(&candle, &of([1.001, 2., 7.])?, [1e-3; 2])?.is_ok());
    assert!(near(&candle, &of([1.1, 2., 7.])?, [1e-3; 2])?.is_err(), "too far");
    assert!(near(&candle, &of([2., 1., 7.])?, [0.5; 2])?.is_err(), "farther than the runs, which are too far for more");
    assert!(near(&candle, &of([2., 1., 7.])?, [0.7; 2])?.is_ok(), "no farther than the runs");
    assert!(near(&candle, &of([2., 1., 7.])?, [7., 0.1])?.is_err(), "many runs that are near tell no less than one");
    assert!(near(&candle, &of([0., 0., 7.])?, [9., 9.])?.is_err(), "nothing stands for a result");
    assert!(near(&candle, &of([f32::NAN, 2., 7.])?, [1.; 2])?.is_err());
    // Results of f16 that come from values of f32.
    let of_f16 = |x: f64| Tensor::new(&[x, 1.], &Device::Cpu)?.to_dtype(DType::F16);
    assert!(near(&of_f16(1.)?, &of_f16(1. + 8. * U)?, [1e-7; 2])?.is_ok(), "a few roundings");
    assert!(near(&of_f16(1.)?, &of_f16(1. + 64. * U)?, [1e-7; 2])?.is_err(), "many");
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

/// Anything that a result may hold.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => -4f64..4.,
        1 => Just(0.),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)],
        1 => (-1f64..1.).prop_map(|x| x * 1e300),
        1 => (-1f64..1.).prop_map(|x| x * 1e-300),
    ]
}

/// candle's and double precision's, and other results that are mostly near.
fn results() -> impl Strategy<Value = Vec<[f64; 3]>> {
    let near = |range: f64| prop_oneof![9 => (-range..range).prop_map(Some), 1 => Just(None)];
    let element = (number(), near(U), near(U), number(), number());
    let element = element.prop_map(|(r, c, o, any, another)| {
        [r, c.map_or(any, |error| r * (1. + error)), o.map_or(another, |error| r * (1. + error))]
    });
    // Most vectors have no strange elements; some are longer than a row of the totals.
    prop_oneof![
        prop::collection::vec(element, 1..8),
        prop::collection::vec((-4f64..4., -U..U, -U..U), 1..3000)
            .prop_map(|all| all.into_iter().map(|(r, c, o)| [r, r + c, r + o]).collect()),
    ]
}

proptest! {
    #[test]
    fn both_ways_agree(all in results()) {
        let [r, c, o] = [0, 1, 2].map(|at| all.iter().map(|of| of[at]).collect::<Vec<_>>());
        let _ = compared(U, &r, &c, &o);
        let (c, o) = (tensor(&c), tensor(&o));
        prop_assert_eq!(on_device::are_same_kinds(&c, &o).unwrap(), on_host::same_kinds(&c, &o).unwrap().is_ok());
        match (on_device::distance(&c, &o).unwrap(), on_host::distance(&c, &o).unwrap()) {
            (Some(device), Ok(host)) => prop_assert!(are_close(device, host), "{device} {host}"),
            (Some(device), Err(reason)) => prop_assert!(false, "{device} though {reason}"),
            (None, Ok(host)) => prop_assert!(!host.is_finite() || all.iter().flatten().any(|x| x.abs() > 1e100)),
            (None, Err(_)) => {}
        }
        let has_finite = all.iter().any(|of| of[1].is_finite());
        prop_assert_eq!(has_no_finite(&c).unwrap(), !has_finite);
    }
}

#[test]
fn tensors_of_more_than_one_piece_are_compared_whole() -> Result<()> {
    let len = on_device::PIECE + 1500;
    let mut candle = vec![1f32; len];
    let at = |values: &[f32]| Tensor::new(values, &Device::Cpu);
    let (reference, equal) = (at(&candle)?, at(&candle)?);
    candle[len - 1] = 1.5;
    let candle = at(&candle)?;
    let [errors, others] = on_device::errors(U, [&reference, &candle, &equal])?.unwrap();
    assert_eq!((errors.max, others.max), (0.5 / U, 0.));
    assert!(are_close(errors.rms, 0.5 / U / (len as f64).sqrt()));
    assert!(are_close(on_device::distance(&equal, &candle)?.unwrap(), 0.5 / (len as f64).sqrt()));
    Ok(())
}

/// Needs a GPU; skips without one. Its totals are those of the host, in every type, and where elements are not finite.
#[cfg(feature = "cuda")]
#[test]
fn a_gpu_has_the_totals_of_the_host() -> Result<()> {
    let Some(device) = crate::test_device::gpu() else { return Ok(()) };
    // Less than a row of the totals, whole rows, and rows with some left.
    for (len, dtype) in [(7, DType::F32), (4096, DType::BF16), (300_001, DType::F16), (2_000_003, DType::F32)] {
        for is_strange in [false, true] {
            let number = |i: usize, seed: usize| match (i * 2_654_435_761 + seed * 97) % 2_000_003 {
                x if is_strange && x % 7 == 0 => f64::INFINITY,
                x if is_strange && x % 7 == 1 => f64::NAN,
                x => x as f64 / 1e6 - 1.,
            };
            let reference: Vec<f64> = (0..len).map(|i| number(i, 1)).collect();
            let reference = Tensor::new(reference, &Device::Cpu)?;
            let near = |seed: usize| -> Result<Tensor> {
                let noise: Vec<f64> = (0..len).map(|i| (i * 40_503 + seed) as f64 % 1009. / 1e5).collect();
                (&reference + Tensor::new(noise, &Device::Cpu)?)?.to_dtype(dtype)?.to_device(&device)
            };
            let (reference, candle, other) = (reference.to_device(&device)?, near(5)?, near(11)?);
            let tensors = [&reference, &candle, &other];
            let (on_gpu, host) = (on_device::errors(unit(dtype), tensors)?, on_host::errors(unit(dtype), tensors)?);
            match (on_gpu, host) {
                (Some(on_gpu), Ok(host)) => {
                    for (on_gpu, host) in on_gpu.iter().zip(host) {
                        assert!(are_close(on_gpu.rms, host.rms) && are_close(on_gpu.max, host.max), "{len} {dtype:?}");
                    }
                }
                other => panic!("{other:?} of {len} in {dtype:?}"),
            }
            assert!(on_device::are_same_kinds(&candle, &other)?);
            let distance = on_host::distance(&candle, &other)?.unwrap();
            assert!(are_close(on_device::distance(&candle, &other)?.unwrap(), distance));
            let nothing = (&other * f64::NAN)?;
            assert!(!on_device::are_same_kinds(&candle, &nothing)? && on_device::has_no_finite(&nothing)?);
            assert!(on_device::errors(unit(dtype), [&reference, &candle, &nothing])?.is_none());
            assert!(on_device::distance(&candle, &nothing)?.is_none() && !on_device::has_no_finite(&candle)?);
        }
    }
    Ok(())
}

#[test]
fn beside_much_larger_errors_a_rounding_more_is_no_less_accurate() -> Result<()> {
    let reference = vec![1f64; 512];
    let off = |by: f32| tensor(&reference).to_dtype(DType::F32)?.affine(f64::from(by).mul_add(2f64.powi(-24), 1.), 0.);
    let (reference, candle, other) = (tensor(&reference), off(4.)?, off(8.)?);
    let beside = |noise: f64, other: &Tensor| compare_beside(noise, [&reference, &candle, other]);
    assert!(beside(0., &other)?.is_err());
    assert!(beside(1e-5, &other)?.is_err());
    assert!(beside(1e-2, &other)?.is_ok());
    assert!(beside(1e-2, &(&other * 1.0001)?)?.is_err(), "a hundredth of the noise counts");
    Ok(())
}

/// Results around one with a rounding error of so many units in turn.
fn with_error(units: f64) -> Tensor {
    let signs = (0..512).map(|at| if at % 2 == 0 { 1. } else { -1. });
    tensor(&signs.map(|sign| 1. + sign * units * U).collect::<Vec<_>>()).to_dtype(DType::F16).unwrap()
}

#[test]
fn candles_own_errors_say_how_much_the_end_tells() {
    let reference = tensor(&[1.; 512]);
    let verdict = |of_moved: &[f64], moved: f64, candle: f64, other: f64| {
        let errors =
            [&[candle], of_moved].concat().into_iter().map(|error| Errors { rms: error, max: error }).collect();
        Scatter { errors, moved }.compare([&reference, &with_error(candle), &with_error(other)]).unwrap()
    };
    // candle's errors are alike: what is less accurate by a tenth is refused, with or without them.
    assert!(verdict(&[], 0., 40., 44.).is_err());
    assert!(verdict(&[40., 41., 40.], 0.03, 40., 44.).is_err());
    // They differ by a tenth: so may this one, and by no more than a tenth.
    assert!(verdict(&[44., 42., 41.], 0.03, 40., 44.).is_ok());
    assert!(verdict(&[44., 42., 41.], 0.03, 40., 60.).is_err());
    // However much they differ, twice as much is no luck.
    assert!(verdict(&[4., 4., 4.], 0.03, 40., 100.).is_err());
    // A fifth off double precision, which is told if a rounding moves candle's results as far.
    assert!(verdict(&[400., 380., 410.], 0., 400., 400.).is_err_and(|why| why.contains("double precision")));
    assert!(verdict(&[400., 380., 410.], 0.01, 400., 400.).is_err_and(|why| why.contains("double precision")));
    assert!(verdict(&[400., 380., 410.], 0.2, 400., 400.).is_ok());
    // What is errors for the most part is no result, however candle's scatter.
    assert!(verdict(&[1800., 1400., 1200.], 1., 1000., 2048.).is_err());
    // What is errors for the most part tells nothing.
    assert!(verdict(&[1500.; 3], 2., 1500., 1500.).is_err());
}
