//! Modules on the CPU that are not functions of their inputs and weights alone: state, read-backs, random numbers.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use candle::{DType, Result, Tensor};
use common::{answers_like, assert_same, one, refused, same_bits, waves, CPU};
use opara_candle::{ops, Error, Mode, OparaExecutor};

#[test]
fn a_cache_that_grows_is_refused() {
    let cache = Arc::new(Mutex::new(Tensor::zeros((0, 6), DType::F32, CPU).expect("an empty cache")));
    let function = {
        let cache = cache.clone();
        move |t: &[Tensor]| {
            let _span = tracing::info_span!("attention").entered();
            let mut cache = cache.lock().expect("no panic holds this lock");
            *cache = ops::cat(&[&*cache, &ops::tanh(&t[0])?], 0)?;
            Ok(vec![cache.clone()])
        }
    };
    let fast = refused(function, &one(0).expect("an input"), &["attention/cat"]);
    for i in 0..3 {
        let before = cache.lock().expect("no panic holds this lock").clone();
        let input = one(i).expect("an input");
        let expected = Tensor::cat(&[&before, &input[0].tanh().expect("tanh")], 0).expect("cat");
        assert_same(&fast.call(&input).expect("an answer"), &[expected], i);
    }
}

#[test]
fn a_counter_in_the_operators_parameters_is_refused() -> anyhow::Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let function = move |t: &[Tensor]| Ok(vec![ops::affine(&t[0], count.fetch_add(1, Ordering::Relaxed) as f64, 0.)?]);
    let fast = refused(function, &one(0)?, &["differs"]);
    for i in 0..3 {
        let expected = one(i)?[0].affine(calls.load(Ordering::Relaxed) as f64, 0.)?;
        assert_same(&fast.call(&one(i)?)?, &[expected], i);
    }
    Ok(())
}

/// Wraps a function of the number of the call, verified or not, which must run eagerly and then do just that.
fn assert_refused_in_turns<F>(function: F, verify: bool) -> anyhow::Result<()>
where
    F: Fn(usize, &[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, counted) = (calls.clone(), function.clone());
    let counted = move |t: &[Tensor]| counted(count.fetch_add(1, Ordering::Relaxed), t);
    let fast = OparaExecutor::builder().verify(verify).build_fn(counted, &one(0)?)?;
    assert!(fast.report().mode == Mode::Eager && fast.report().reason.is_some(), "{}", fast.report());
    for i in 0..4 {
        let expected = function(calls.load(Ordering::Relaxed), &one(i)?)?;
        assert_same(&fast.call(&one(i)?)?, &expected, i);
    }
    Ok(())
}

#[test]
fn what_changes_from_call_to_call_is_refused() -> anyhow::Result<()> {
    let weights = [waves(1, (4, 6))?, waves(2, (4, 6))?];
    for verify in [true, false] {
        let branch =
            |n: usize, t: &[Tensor]| Ok(vec![if n.is_multiple_of(2) { ops::relu(&t[0])? } else { ops::tanh(&t[0])? }]);
        assert_refused_in_turns(branch, verify)?;
        let weights = weights.clone();
        let weight = move |n: usize, t: &[Tensor]| Ok(vec![ops::add(&t[0], &weights[n % 2])?]);
        assert_refused_in_turns(weight, verify)?;
        let parts = |n: usize, t: &[Tensor]| {
            let parts = [&t[0], &t[0], &t[0]];
            Ok(vec![ops::cat(&parts[..2 + n % 2], 0)?])
        };
        assert_refused_in_turns(parts, verify)?;
        let output = |n: usize, t: &[Tensor]| {
            let both = [ops::relu(&t[0])?, ops::tanh(&t[0])?];
            Ok(vec![both[n % 2].clone()])
        };
        assert_refused_in_turns(output, verify)?;
        let outputs = |n: usize, t: &[Tensor]| Ok(vec![ops::relu(&t[0])?; 1 + n % 2]);
        assert_refused_in_turns(outputs, verify)?;
    }
    Ok(())
}

#[test]
fn a_position_that_is_read_from_an_input_is_refused() -> anyhow::Result<()> {
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let function = |t: &[Tensor]| {
            let position = t[1].to_dtype(DType::U32)?.to_scalar::<u32>()?;
            Ok(vec![ops::narrow(&t[0], 0, position as usize, 1)?])
        };
        let inputs = |i: usize| Ok(vec![waves(i, (4, 6))?, Tensor::new(3 - i as u32, CPU)?.to_dtype(dtype)?]);
        answers_like(&refused(function, &inputs(0)?, &["differs"]), function, inputs);
    }
    Ok(())
}

#[test]
fn what_an_example_of_zeros_decides_is_refused() -> anyhow::Result<()> {
    let zeros = [Tensor::zeros((2, 3), DType::F32, CPU)?];
    let inputs = |i: usize| Ok(vec![waves(i, (2, 3))?]);
    let sign = |t: &[Tensor]| match t[0].sum_all()?.to_scalar::<f32>()? > 0. {
        true => Ok(vec![ops::relu(&t[0])?]),
        false => Ok(vec![ops::tanh(&t[0])?]),
    };
    answers_like(&refused(sign, &zeros, &["depends on input values"]), sign, inputs);
    let shift = |t: &[Tensor]| {
        let largest = t[0].flatten_all()?.max(0)?.to_scalar::<f32>()?;
        Ok(vec![ops::affine(&t[0], 1., largest.into())?])
    };
    answers_like(&refused(shift, &zeros, &["differs"]), shift, inputs);
    Ok(())
}

#[test]
fn a_column_and_a_broadcast_number_are_examples() -> anyhow::Result<()> {
    let column = |i: usize| waves(i, (4, 2))?.narrow(1, 1, 1)?.squeeze(1);
    let broadcast = |i: usize| waves(i, 1)?.broadcast_as(3);
    let function = |t: &[Tensor]| Ok(vec![ops::relu(&t[0])?]);
    for example in [column(0)?, broadcast(0)?] {
        let fast = OparaExecutor::builder().build_fn(function, &[example])?;
        assert_eq!((fast.report().mode, fast.report().reason), (Mode::Lanes, None));
        answers_like(&fast, function, |i| Ok(vec![column(i)?]));
        answers_like(&fast, function, |i| Ok(vec![broadcast(i)?]));
    }
    Ok(())
}

#[test]
fn a_folded_operator_that_panics_is_an_error() -> anyhow::Result<()> {
    // It is recorded twice and folded then.
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let function = move |t: &[Tensor]| {
        let count = count.clone();
        let ones = ops::constant("third", move || {
            assert!(count.fetch_add(1, Ordering::Relaxed) != 2, "the third run");
            Tensor::ones((4, 6), DType::F32, CPU)
        })?;
        Ok(vec![ops::add(&t[0], &ones)?])
    };
    let error = OparaExecutor::builder().build_fn(function, &one(0)?).expect_err("it panics");
    assert!(matches!(&error, Error::Panicked { message } if message == "the third run"), "{error}");
    Ok(())
}

#[test]
fn a_module_that_takes_only_some_values_is_refused() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| match t[1].to_scalar::<u32>()? as usize {
        rows if rows == t[0].dim(0)? => Ok(vec![ops::relu(&t[0])?]),
        rows => candle::bail!("{rows} rows are too few"),
    };
    let inputs = |i: usize| Ok(vec![waves(i, (4, 6))?, Tensor::new(4u32, CPU)?]);
    answers_like(&refused(function, &inputs(0)?, &["other values", "2 rows are too few"]), function, inputs);
    Ok(())
}

#[test]
fn random_numbers_are_refused() -> anyhow::Result<()> {
    fn dropout(t: &[&Tensor]) -> Result<Tensor> {
        candle_nn::Dropout::new(0.5).forward(t[0], true)
    }
    type Function = fn(&[Tensor]) -> Result<Vec<Tensor>>;
    let functions: [(Function, &str); 4] = [
        (
            |t| {
                let _span = tracing::info_span!("noise").entered();
                Ok(vec![ops::add(&t[0], &Tensor::rand(0f32, 1., (4, 6), CPU)?)?])
            },
            "noise/add",
        ),
        (|t| Ok(vec![dropout(&[&ops::relu(&t[0])?])?]), "output 0"),
        (|t| Ok(vec![ops::custom("dropout", &[&t[0]], dropout)?]), "differs"),
        (|t| Ok(vec![ops::add(&t[0], &ops::constant("noise", || Tensor::randn(0f32, 1., (4, 6), CPU))?)?]), "differs"),
    ];
    for (function, part) in functions {
        let fast = refused(function, &one(0)?, &[part]);
        let (first, second) = (fast.call(&one(1)?)?, fast.call(&one(1)?)?);
        assert!(!same_bits(&first[0], &second[0])?, "every call draws anew");
    }
    Ok(())
}
