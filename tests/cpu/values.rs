//! Modules on the CPU whose host code branches on values: does building detect it, and with which examples?

use candle::{DType, Result, Tensor};
use opara_candle::{ops, Error, Mode, OparaExecutor};

use super::common::{answers_like, refused, waves, CPU};

/// An input with only positive elements, and its negative.
fn positive(i: usize) -> Result<Vec<Tensor>> {
    let x = (waves(i, (2, 3))?.abs()? + 0.5)?;
    Ok(vec![if i.is_multiple_of(2) { x } else { x.neg()? }])
}

#[test]
fn a_branch_on_the_sign_of_a_sum_is_detected() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| match t[0].sum_all()?.to_scalar::<f32>()? > 0. {
        true => Ok(vec![ops::relu(&t[0])?]),
        false => Ok(vec![ops::tanh(&t[0])?]),
    };
    answers_like(&refused(function, &positive(0)?, &["depends on input values"]), function, positive);
    Ok(())
}

#[test]
fn a_branch_on_the_magnitude_of_an_input_is_detected() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| match t[0].abs()?.max_all()?.to_scalar::<f32>()? > 4. {
        true => Ok(vec![ops::relu(&t[0])?]),
        false => Ok(vec![ops::tanh(&t[0])?]),
    };
    let inputs = |i: usize| Ok(vec![(positive(i)?[0].clone() * (1 + 9 * i) as f64)?]);
    answers_like(&refused(function, &inputs(0)?, &["depends on input values"]), function, inputs);
    Ok(())
}

#[test]
fn a_scale_read_from_the_input_is_detected() -> anyhow::Result<()> {
    for dtype in [DType::F16, DType::F32, DType::F64] {
        let function = |t: &[Tensor]| {
            let largest = t[0].abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            Ok(vec![ops::affine(&t[0], 1. / largest, 0.)?])
        };
        let inputs = |i: usize| Ok(vec![positive(i)?[0].to_dtype(dtype)?]);
        answers_like(&refused(function, &inputs(0)?, &["reads values"]), function, inputs);
    }
    Ok(())
}

#[test]
fn made_up_ids_stay_in_the_range_of_the_example() -> anyhow::Result<()> {
    let table = waves(3, (4, 5))?;
    let function = move |t: &[Tensor]| {
        let ids = t[0].flatten_all()?.to_vec1::<u32>()?;
        assert!(ids.iter().all(|id| (1..=4).contains(id)), "made-up ids: {ids:?}");
        let rows = ops::custom("less one", &[&t[0]], |t| t[0] - t[0].ones_like()?)?;
        Ok(vec![ops::tanh(&ops::index_select(&table, &rows, 0)?)?])
    };
    let inputs = |i: usize| Ok(vec![Tensor::full(1 + (i % 4) as u32, 3, CPU)?]);
    for builder in [OparaExecutor::builder(), OparaExecutor::builder().verify(false)] {
        let fast = builder.assume_pure(true).build_fn(function.clone(), &inputs(0)?)?;
        assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
        answers_like(&fast, function.clone(), inputs);
    }
    Ok(())
}

/// A mode that is given by a tensor.
fn by_mode(t: &[Tensor]) -> Result<Vec<Tensor>> {
    match t[1].to_scalar::<u8>()? {
        0 => Ok(vec![ops::relu(&t[0])?]),
        _ => Ok(vec![ops::tanh(&t[0])?]),
    }
}

fn with_mode(i: usize) -> Result<Vec<Tensor>> {
    Ok(vec![waves(i, (2, 3))?, Tensor::new((i % 2) as u8, CPU)?])
}

#[test]
fn a_further_example_detects_a_mode() -> anyhow::Result<()> {
    let fast = OparaExecutor::builder().example(&with_mode(1)?).build_fn(by_mode, &with_mode(0)?)?;
    let report = fast.report();
    assert!(report.mode() == Mode::Eager && report.reason().is_some_and(|r| r.contains("input values")), "{report}");
    answers_like(&fast, by_mode, with_mode);
    Ok(())
}

#[test]
fn the_report_names_an_integer_input_that_no_example_varies() -> anyhow::Result<()> {
    let report = OparaExecutor::builder().assume_pure(true).build_fn(by_mode, &with_mode(0)?)?.report();
    assert_eq!((report.is_verified(), report.verified_inputs(), report.unvaried_inputs()), (true, 3, &[1][..]));
    let ids = |i: u32| Ok::<_, candle::Error>([Tensor::new(&[i, i + 1], CPU)?]);
    let double = |t: &[Tensor]| Ok(vec![ops::add(&t[0], &t[0])?]);
    let report = OparaExecutor::builder().build_fn(double, &ids(1)?)?.report();
    assert_eq!(
        (report.is_verified(), report.verified_inputs(), report.unvaried_inputs()),
        (true, 1, &[0][..]),
        "{report}"
    );
    // The same numbers again do not count as another example.
    let builder = OparaExecutor::builder().example(&ids(1)?).example(&ids(5)?);
    let report = builder.build_fn(double, &ids(1)?)?.report();
    assert_eq!((report.verified_inputs(), report.unvaried_inputs()), (2, &[][..]), "{report}");
    assert!(report.to_string().contains("on 2 inputs\n"), "{report}");
    let report = OparaExecutor::builder().verify(false).build_fn(double, &ids(1)?)?.report();
    assert_eq!((report.is_verified(), report.verified_inputs()), (false, 0), "{report}");
    Ok(())
}

#[test]
fn further_examples_must_have_the_shapes_of_the_first() -> anyhow::Result<()> {
    let build = |further: &[Tensor]| {
        let built = OparaExecutor::builder().example(&with_mode(1)?).example(further).build_fn(by_mode, &with_mode(0)?);
        Ok::<_, anyhow::Error>(built.expect_err("it does not fit"))
    };
    let mode = Tensor::new(1u8, CPU)?;
    let error = build(&[waves(0, (2, 4))?, mode.clone()])?;
    assert!(matches!(&error, Error::ExampleShape { example: 1, index: 0, .. }), "{error}");
    assert!(error.to_string().contains("F32 [2, 4]") && error.to_string().contains("F32 [2, 3]"), "{error}");
    let error = build(&[waves(0, (2, 3))?, mode.to_dtype(DType::U32)?])?;
    assert!(matches!(&error, Error::ExampleShape { example: 1, index: 1, got_dtype: DType::U32, .. }), "{error}");
    let error = build(&[mode])?;
    assert!(matches!(&error, Error::InputCount { expected: 2, got: 1 }), "{error}");
    Ok(())
}
