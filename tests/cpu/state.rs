//! Modules on the CPU that are not pure functions of inputs and weights: state, read-backs, random numbers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use candle::{DType, Result, Tensor};
use opara_candle::{ops, Builder, Error, Mode, OnStateful, OnUncapturable, OparaExecutor};

use super::common::{
    answers_like, assert_same, assert_same_state_as, calls_while_built, one, refused, same_bits, stateful, waves, CPU,
};

/// A module that appends to a cache, and returns the whole cache.
fn growing() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let cache = Mutex::new(Tensor::zeros((0, 6), DType::F32, CPU).expect("an empty cache"));
    move |t: &[Tensor]| {
        let _span = tracing::info_span!("attention").entered();
        let mut cache = cache.lock().expect("no panic holds this lock");
        *cache = ops::cat(&[&*cache, &ops::tanh(&t[0])?], 0)?;
        Ok(vec![cache.clone()])
    }
}

/// The same with candle's own operators, which are not recorded.
fn growing_unrecorded() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let cache = Mutex::new(Tensor::zeros((0, 6), DType::F32, CPU).expect("an empty cache"));
    move |t: &[Tensor]| {
        let mut cache = cache.lock().expect("no panic holds this lock");
        *cache = Tensor::cat(&[&*cache, &t[0].tanh()?], 0)?;
        Ok(vec![cache.sum_keepdim(0)?])
    }
}

/// A module that multiplies by the number of the call.
fn counting() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let calls = AtomicUsize::new(0);
    move |t: &[Tensor]| {
        let _span = tracing::info_span!("count").entered();
        Ok(vec![ops::affine(&t[0], calls.fetch_add(1, Ordering::Relaxed) as f64, 0.)?])
    }
}

#[test]
fn a_growing_cache_is_an_error_unless_state_is_declared() -> anyhow::Result<()> {
    for verify in [true, false] {
        let builder = || OparaExecutor::builder().verify(verify);
        stateful(builder(), growing(), &one(0)?, &["attention/cat", "an earlier call made"]);
        stateful(builder(), growing_unrecorded(), &one(0)?, &["other outputs", "random numbers"]);
        stateful(builder(), counting(), &one(0)?, &["count/affine"]);
    }
    assert_same_state_as(growing, one);
    assert_same_state_as(growing_unrecorded, one);
    assert_same_state_as(counting, one);
    Ok(())
}

#[test]
fn returning_the_previous_calls_answer_is_an_error() -> anyhow::Result<()> {
    let make = || {
        let before = Mutex::new(None::<Tensor>);
        move |t: &[Tensor]| {
            let now = ops::tanh(&t[0])?;
            let before = before.lock().expect("no panic holds this lock").replace(now.clone());
            Ok(vec![before.unwrap_or(now)])
        }
    };
    stateful(OparaExecutor::builder(), make(), &one(0)?, &["output 0", "an earlier call made"]);
    assert_same_state_as(make, one);
    Ok(())
}

#[test]
fn state_left_by_the_first_input_is_an_error() -> anyhow::Result<()> {
    let make = || {
        let first = OnceLock::new();
        move |t: &[Tensor]| {
            let encoded = match first.get() {
                Some(encoded) => Tensor::clone(encoded),
                None => ops::tanh(&t[0])?,
            };
            Ok(vec![ops::add(&t[0], first.get_or_init(|| encoded))?])
        }
    };
    stateful(OparaExecutor::builder(), make(), &one(0)?, &["`add`", "an earlier call made"]);
    assert_same_state_as(make, one);
    Ok(())
}

#[test]
fn a_table_built_by_the_first_call_counts_as_a_weight() -> anyhow::Result<()> {
    // By a recorded operator and by one of candle's own; with float inputs, which are varied, and without.
    for recorded in [true, false] {
        for inputs in [one, |i: usize| Ok(vec![Tensor::arange(i as u32, 24 + i as u32, CPU)?.reshape((4, 6))?])] {
            let dtype = inputs(0)?[0].dtype();
            let make = move || {
                let table = Tensor::arange(0f32, 24., CPU)?.reshape((4, 6))?.to_dtype(dtype)?;
                if recorded {
                    ops::add(&table, &table)
                } else {
                    &table + &table
                }
            };
            let table = OnceLock::new();
            let function = move |t: &[Tensor]| {
                if table.get().is_none() {
                    let made = make()?;
                    table.get_or_init(|| made);
                }
                Ok(vec![ops::add(&t[0], table.get().expect("it was made just now"))?])
            };
            let fast = OparaExecutor::builder().build_fn(function, &inputs(0)?)?;
            assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
            answers_like(&fast, |t| Ok(vec![(&t[0] + make()?)?]), inputs);
        }
    }
    Ok(())
}

/// candle's `narrow` over all of a tensor, its `contiguous` and its `to_dtype` may return the tensor itself.
#[test]
fn an_operator_that_returns_its_operand_is_no_state() -> anyhow::Result<()> {
    let weight = waves(9, (4, 6))?;
    let module = {
        let weight = weight.clone();
        move |t: &[Tensor]| {
            let whole = ops::to_dtype(&ops::contiguous(&ops::narrow(&weight, 0, 0, 4)?)?, DType::F32)?;
            Ok(vec![ops::add(&ops::narrow(&t[0], 1, 0, 6)?, &whole)?, ops::contiguous(&t[0])?])
        }
    };
    let fast = OparaExecutor::builder().build_fn(module, &one(0)?)?;
    assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
    for i in 0..3 {
        let x = one(i)?;
        assert_same(&fast.call(&x)?, &[(&x[0] + &weight)?, x[0].clone()], i);
    }
    Ok(())
}

#[test]
fn state_that_only_a_later_shape_shows_is_an_error_of_that_call() -> anyhow::Result<()> {
    let calls = AtomicUsize::new(0);
    let function = move |t: &[Tensor]| match t[0].dim(0)? {
        5 => Ok(vec![ops::affine(&t[0], calls.fetch_add(1, Ordering::Relaxed) as f64, 0.)?]),
        _ => Ok(vec![ops::relu(&t[0])?]),
    };
    let fast = OparaExecutor::builder().build_fn(function, &one(0)?)?;
    let five = [waves(0, (5, 6))?];
    for _ in 0..2 {
        assert!(matches!(fast.call(&five), Err(Error::Stateful { .. })));
        assert!(matches!(fast.call_zero_copy(&five, |_| ()), Err(Error::Stateful { .. })));
    }
    assert_same(&fast.call(&one(1)?)?, &[one(1)?[0].relu()?], "the shape that keeps no state");
    Ok(())
}

#[test]
fn building_calls_a_module_as_often_as_documented() -> anyhow::Result<()> {
    fn relu(t: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![ops::relu(&t[0])?])
    }
    let floats = one(0)?;
    let ids = [Tensor::new(&[1u32, 2], CPU)?];
    let count =
        |builder: Builder, inputs: &[Tensor]| Ok::<_, anyhow::Error>(calls_while_built(builder, relu, inputs)?.1);
    assert_eq!(count(OparaExecutor::builder(), &floats)?, 12);
    assert_eq!(count(OparaExecutor::builder().assume_pure(true), &floats)?, 4);
    assert_eq!(count(OparaExecutor::builder().example(&one(1)?).example(&one(2)?), &floats)?, 14);
    assert_eq!(count(OparaExecutor::builder().verify(false), &floats)?, 10);
    assert_eq!(count(OparaExecutor::builder().on_stateful(OnStateful::Eager), &floats)?, 0);
    let add = |t: &[Tensor]| Ok(vec![ops::add(&t[0], &t[0])?]);
    assert_eq!(calls_while_built(OparaExecutor::builder(), add, &ids)?.1, 10);
    let plain = |t: &[Tensor]| Ok(vec![t[0].relu()?]);
    let (fast, calls) = calls_while_built(OparaExecutor::builder(), plain, &floats)?;
    assert_eq!((calls, fast.report().mode()), (2, Mode::Eager));

    // Further shapes are built like the first one. A built shape does not call the module any more.
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let function = move |t: &[Tensor]| {
        counter.fetch_add(1, Ordering::Relaxed);
        relu(t)
    };
    let fast = OparaExecutor::builder().example(&one(1)?).build_fn(function, &one(0)?)?;
    for (rows, expected) in [(4, 13), (7, 25), (4, 25), (7, 25)] {
        fast.call(&[waves(0, (rows, 6))?])?;
        assert_eq!(calls.load(Ordering::Relaxed), expected, "after {rows} rows");
    }
    Ok(())
}

/// A function of the call number must be an error, with and without verification, and must run if it is declared to
/// keep state.
fn assert_call_number_is_detected<F>(function: F) -> anyhow::Result<()>
where
    F: Fn(usize, &[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
{
    let make = || {
        let (function, calls) = (function.clone(), AtomicUsize::new(0));
        move |t: &[Tensor]| function(calls.fetch_add(1, Ordering::Relaxed), t)
    };
    stateful(OparaExecutor::builder(), make(), &one(0)?, &[]);
    stateful(OparaExecutor::builder().example(&one(1)?), make(), &one(0)?, &[]);
    stateful(OparaExecutor::builder().verify(false), make(), &one(0)?, &[]);
    assert_same_state_as(make, one);
    Ok(())
}

#[test]
fn results_that_change_from_call_to_call_are_an_error() -> anyhow::Result<()> {
    assert_call_number_is_detected(|n: usize, t: &[Tensor]| {
        Ok(vec![if n.is_multiple_of(2) { ops::relu(&t[0])? } else { ops::tanh(&t[0])? }])
    })?;
    let weights = [waves(1, (4, 6))?, waves(2, (4, 6))?];
    assert_call_number_is_detected(move |n: usize, t: &[Tensor]| Ok(vec![ops::add(&t[0], &weights[n % 2])?]))?;
    assert_call_number_is_detected(|n: usize, t: &[Tensor]| {
        let parts = [&t[0], &t[0], &t[0]];
        Ok(vec![ops::cat(&parts[..2 + n % 2], 0)?])
    })?;
    assert_call_number_is_detected(|n: usize, t: &[Tensor]| {
        let both = [ops::relu(&t[0])?, ops::tanh(&t[0])?];
        Ok(vec![both[n % 2].clone()])
    })?;
    assert_call_number_is_detected(|n: usize, t: &[Tensor]| Ok(vec![ops::relu(&t[0])?; 1 + n % 2]))
}

#[test]
fn a_position_read_from_an_input_is_refused() -> anyhow::Result<()> {
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let function = |t: &[Tensor]| {
            let position = t[1].to_dtype(DType::U32)?.to_scalar::<u32>()?;
            Ok(vec![ops::narrow(&t[0], 0, position as usize, 1)?])
        };
        let inputs = |i: usize| Ok(vec![waves(i, (4, 6))?, Tensor::new(3 - i as u32, CPU)?.to_dtype(dtype)?]);
        let fast = OparaExecutor::builder().example(&inputs(1)?).build_fn(function, &inputs(0)?)?;
        let reason = fast.report().reason().unwrap_or_default().to_owned();
        assert!(fast.report().mode() == Mode::Eager && reason.contains("reads values"), "{}", fast.report());
        answers_like(&fast, function, inputs);
        // Nor without another example.
        let fast = refused(function, &inputs(0)?, &["reads values"]);
        answers_like(&fast, function, inputs);
        // With a promise it is not looked for, and the report says what is not known.
        let fast = OparaExecutor::builder().assume_pure(true).build_fn(function, &inputs(0)?)?;
        let report = fast.report();
        assert_eq!(
            (report.mode(), report.verified_inputs(), report.unvaried_inputs()),
            (Mode::Threads, 3, &[1][..]),
            "{report}"
        );
        assert!(report.to_string().contains("the same integers in inputs [1]"), "{report}");
    }
    Ok(())
}

#[test]
fn a_branch_that_an_example_of_zeros_decides_is_refused() -> anyhow::Result<()> {
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
    answers_like(&refused(shift, &zeros, &["reads values"]), shift, inputs);
    Ok(())
}

#[test]
fn strided_and_broadcast_tensors_can_be_examples() -> anyhow::Result<()> {
    let column = |i: usize| waves(i, (4, 2))?.narrow(1, 1, 1)?.squeeze(1);
    let broadcast = |i: usize| waves(i, 1)?.broadcast_as(3);
    let function = |t: &[Tensor]| Ok(vec![ops::relu(&t[0])?]);
    for example in [column(0)?, broadcast(0)?] {
        let fast = OparaExecutor::builder().build_fn(function, &[example])?;
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None));
        answers_like(&fast, function, |i| Ok(vec![column(i)?]));
        answers_like(&fast, function, |i| Ok(vec![broadcast(i)?]));
    }
    Ok(())
}

#[test]
fn a_folded_operator_that_panics_is_an_error() -> anyhow::Result<()> {
    // It is recorded four times, runs once where inputs have no values, and is then folded.
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let function = move |t: &[Tensor]| {
        let count = count.clone();
        let ones = ops::constant("sixth", move || {
            assert!(count.fetch_add(1, Ordering::Relaxed) != 5, "the sixth run");
            Tensor::ones((4, 6), DType::F32, CPU)
        })?;
        Ok(vec![ops::add(&t[0], &ones)?])
    };
    let error = OparaExecutor::builder().build_fn(function, &one(0)?).expect_err("it panics");
    assert!(matches!(&error, Error::Panicked { message } if message == "the sixth run"), "{error}");
    Ok(())
}

#[test]
fn a_module_that_fails_on_other_values_is_refused() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| match t[0].min_all()?.to_scalar::<f32>()? {
        least if least >= 0. => Ok(vec![ops::sqr(&t[0])?]),
        least => candle::bail!("{least} is not a share"),
    };
    let inputs = |i: usize| Ok(vec![waves(i, (4, 6))?.abs()?]);
    answers_like(&refused(function, &inputs(0)?, &["other values", "is not a share"]), function, inputs);
    // Without verification, it is called with the example only, and by promise it is replayed.
    let fast = OparaExecutor::builder().verify(false).assume_pure(true).build_fn(function, &inputs(0)?)?;
    assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
    answers_like(&fast, function, inputs);
    // A failure on the user's own further example is the module's error.
    let negative = [one(0)?[0].neg()?];
    let error = OparaExecutor::builder().example(&negative).build_fn(function, &inputs(0)?).expect_err("it fails");
    assert!(matches!(&error, Error::Candle(_)) && error.to_string().contains("is not a share"), "{error}");
    Ok(())
}

/// Operators that draw random numbers are distinguished from state by repeating the same operator: its result differs
/// each time. Draws outside recorded operators cannot be distinguished.
#[test]
fn random_numbers_are_refused() -> anyhow::Result<()> {
    fn dropout(t: &[&Tensor]) -> Result<Tensor> {
        candle_nn::Dropout::new(0.5).forward(t[0], true)
    }
    fn noise() -> Result<Tensor> {
        Tensor::rand(0f32, 1., (4, 6), CPU)
    }
    type Function = fn(&[Tensor]) -> Result<Vec<Tensor>>;
    let in_operators: [Function; 2] = [
        |t| Ok(vec![ops::custom("dropout", &[&t[0]], dropout)?]),
        |t| Ok(vec![ops::add(&t[0], &ops::constant("noise", noise)?)?]),
    ];
    let between_operators: [(Function, &str); 2] = [
        (
            |t| {
                let _span = tracing::info_span!("noise").entered();
                Ok(vec![ops::add(&t[0], &noise()?)?])
            },
            "noise/add",
        ),
        (|t| Ok(vec![dropout(&[&ops::relu(&t[0])?])?]), "output 0"),
    ];
    let draws_anew = |fast: OparaExecutor| -> anyhow::Result<()> {
        let first = fast.call(&one(1)?)?;
        // Of few elements two draws are the same once in some thousand.
        let are_same = (0..4).map(|_| Ok(same_bits(&first[0], &fast.call(&one(1)?)?[0])?));
        assert!(are_same.collect::<anyhow::Result<Vec<_>>>()?.contains(&false), "every call draws anew");
        Ok(())
    };
    for function in in_operators {
        draws_anew(refused(function, &one(0)?, &["differs", "draws random numbers"]))?;
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let error = strict.build_fn(function, &one(0)?).unwrap_err();
        assert!(matches!(error, Error::DrawsRandomNumbers { .. }), "{error:?}");
    }
    for (function, part) in between_operators {
        stateful(OparaExecutor::builder(), function, &one(0)?, &[part, "draws random numbers"]);
        draws_anew(OparaExecutor::builder().on_stateful(OnStateful::Eager).build_fn(function, &one(0)?)?)?;
    }
    Ok(())
}
