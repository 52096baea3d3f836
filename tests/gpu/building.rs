//! Building on a GPU: the inputs that a module is called with, and data that it may keep (tables, weights on the CPU,
//! statistics on the device). Tests skip without a GPU or the feature `cuda`, and say so.

use std::sync::{Arc, Mutex, OnceLock};

use crate::common::{answers_like, assert_same, calls_while_built, gpu, isolated, one_on, refused, replayed, waves};
use candle::{Result, Tensor};
use candle_nn::BatchNorm;
use opara_candle::{Mode, OnStateful, OnUncapturable, OparaExecutor};

/// Message for taking a lock.
const FREE: &str = "no panic holds this lock";

#[test]
fn weights_on_the_cpu_are_uploaded_once() {
    let Some(device) = gpu() else { return };
    let weight = waves(7, (256, 256)).expect("a weight");
    let function = move |t: &[Tensor]| {
        let weight = weight.to_device(t[0].device())?;
        Ok(vec![t[0].matmul(&weight)?, t[0].matmul(&weight.narrow(0, 0, 256)?.relu()?)?])
    };
    let fast = replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (8, 256))?.to_device(&device)?]));
    assert!(fast.report().counts().folded >= 2, "the upload and the relu: {}", fast.report());
}

#[test]
fn a_table_built_by_the_first_call_counts_as_a_weight() {
    let Some(device) = gpu() else { return };
    let table = Arc::new(OnceLock::<Tensor>::new());
    let function = move |t: &[Tensor]| {
        if table.get().is_none() {
            let made = Tensor::arange(0f32, 24., t[0].device())?.reshape((4, 6))?.cos()?;
            table.get_or_init(|| made);
        }
        Ok(vec![(&t[0] * table.get().expect("it was made just now"))?])
    };
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

/// A cache that holds one table, for the last shape.
#[test]
fn replacing_a_table_for_another_shape_does_not_affect_the_first_shape() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let table = Mutex::new(None::<(usize, Tensor)>);
        let function = move |t: &[Tensor]| {
            let rows = t[0].dim(0)?;
            let mut table = table.lock().expect(FREE);
            if table.as_ref().is_none_or(|(of, _)| *of != rows) {
                let made = Tensor::arange(0f32, 6. * rows as f32, t[0].device())?.reshape((rows, 6))?;
                *table = Some((rows, made));
            }
            Ok(vec![(&t[0] + &table.as_ref().expect("it was made above").1)?])
        };
        let inputs = |i: usize, rows: usize| Ok(vec![waves(i, (rows, 6))?.to_device(&device)?]);
        let plain = |t: &[Tensor]| {
            let rows = t[0].dim(0)?;
            Ok(vec![(&t[0] + Tensor::arange(0f32, 6. * rows as f32, t[0].device())?.reshape((rows, 6))?)?])
        };
        let fast = OparaExecutor::builder().build_fn(function, &inputs(0, 4)?)?;
        answers_like(&fast, plain, |i| inputs(i, 4));
        answers_like(&fast, plain, |i| inputs(i, 5));
        // Reuses the memory of the freed table.
        let noise = (0..256).map(|_| Tensor::full(f32::NAN, (4, 6), &device)).collect::<Result<Vec<_>>>()?;
        answers_like(&fast, plain, |i| inputs(i, 4));
        assert_eq!(noise.len(), 256);
        Ok(())
    })
}

#[test]
fn building_calls_a_module_as_often_as_documented() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let relu = |t: &[Tensor]| Ok(vec![t[0].relu()?]);
    let add = |t: &[Tensor]| Ok(vec![(&t[0] + &t[0])?]);
    let floats = |i: usize| one_on(i, &device);
    let ids = [Tensor::new(&[1u32, 2], &device)?];
    let mut counts = Vec::new();
    for (builder, mode) in [
        (OparaExecutor::builder(), Mode::Graph),
        (OparaExecutor::builder().example(&floats(1)?).example(&floats(2)?), Mode::Graph),
        (OparaExecutor::builder().verify(false), Mode::Graph),
        (OparaExecutor::builder().on_stateful(OnStateful::Eager), Mode::Eager),
    ] {
        let (fast, calls) = calls_while_built(builder, relu, &floats(0)?)?;
        assert_eq!(fast.report().mode(), mode, "{}", fast.report());
        counts.push(calls);
    }
    assert_eq!(counts, [5, 7, 4, 0]);
    let (fast, calls) = calls_while_built(OparaExecutor::builder(), add, &ids)?;
    assert_eq!((fast.report().mode(), calls), (Mode::Graph, 4), "{}", fast.report());
    assert_eq!((fast.report().verified_inputs(), fast.report().unvaried_inputs()), (1, &[0][..]));
    Ok(())
}

/// An id out of range destroys the GPU's context.
#[test]
fn made_up_ids_stay_in_the_range_of_the_example() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let table = waves(3, (4, 5))?.to_device(&device)?;
        let function = move |t: &[Tensor]| Ok(vec![table.index_select(&(&t[0] - t[0].ones_like()?)?, 0)?.tanh()?]);
        let inputs = |i: usize| Ok(vec![Tensor::full(1 + (i % 4) as u32, 3, &device)?]);
        replayed(Mode::Graph, function.clone(), inputs);
        let builder = OparaExecutor::builder().example(&inputs(3)?);
        let fast = builder.build_fn(function.clone(), &inputs(0)?)?;
        let report = fast.report();
        assert_eq!(
            (report.mode(), report.verified_inputs(), report.unvaried_inputs()),
            (Mode::Graph, 2, &[][..]),
            "{report}"
        );
        answers_like(&fast, function, inputs);
        Ok(())
    })
}

/// Building calls a module with copies of the examples.
#[test]
fn building_does_not_write_to_the_example() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let row = waves(9, (1, 6))?.to_device(&device)?;
    let function = move |t: &[Tensor]| {
        t[0].slice_set(&row, 0, 2)?;
        Ok(vec![t[0].sqr()?])
    };
    let example = one_on(0, &device)?;
    refused(function, &example, &["writes to a tensor that it is called with"]);
    assert_same(&example, &one_on(0, &device)?, "the example, after building");
    Ok(())
}

#[test]
fn a_write_to_an_input_reaches_the_callers_tensor() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let row = waves(9, (1, 6))?.to_device(&device)?;
    let function = move |t: &[Tensor]| {
        t[0].slice_set(&row, 0, 2)?;
        Ok(vec![t[0].sqr()?])
    };
    let fast = OparaExecutor::builder().build_fn(function.clone(), &one_on(0, &device)?)?;
    for i in 0..3 {
        let (wrapped, plain) = (one_on(i, &device)?, one_on(i, &device)?);
        assert_same(&fast.call(&wrapped)?, &function(&plain)?, i);
        assert_same(&wrapped, &plain, format_args!("the input of call {i}, after it"));
    }
    Ok(())
}

/// State on the device that is written in place may be replayed: each replay advances it.
#[test]
fn running_statistics_are_updated_by_replays() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on_device = |t: Tensor| t.to_device(&device);
    let scale = on_device(waves(1, 3)?)?;
    let norm =
        |mean: &Tensor, var: &Tensor| BatchNorm::new(3, mean.clone(), var.clone(), scale.clone(), scale.clone(), 1e-5);
    let wrapped = Arc::new(norm(&on_device(waves(2, 3)?)?, &on_device(waves(3, 3)?.sqr()?)?)?);
    let function = {
        let wrapped = wrapped.clone();
        move |t: &[Tensor]| Ok(vec![wrapped.forward_train(&t[0])?])
    };
    let inputs = |i: usize| Ok::<_, candle::Error>(vec![on_device(waves(i, (4, 3, 5))?)?]);
    let fast = OparaExecutor::builder().build_fn(function, &inputs(0)?)?;
    let twin = norm(&wrapped.running_mean().copy()?, &wrapped.running_var().copy()?)?;
    for i in 0..4 {
        let x = inputs(i)?;
        assert_same(&fast.call(&x)?, &[twin.forward_train(&x[0])?], i);
        let statistics = |norm: &BatchNorm| [norm.running_mean().clone(), norm.running_var().clone()];
        assert_same(&statistics(&wrapped), &statistics(&twin), format_args!("the statistics after call {i}"));
    }
    Ok(())
}

/// Also if the module is refused, and if building fails.
#[test]
fn building_restores_state_on_the_device() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for reads_back in [false, true] {
        for strict in [OnUncapturable::Eager, OnUncapturable::Error] {
            let last = waves(9, (4, 6))?.to_device(&device)?;
            let function = {
                let last = last.clone();
                move |t: &[Tensor]| {
                    let y = t[0].add(&last)?;
                    last.slice_set(&t[0], 0, 0)?;
                    if reads_back {
                        y.mean_all()?.to_scalar::<f32>()?;
                    }
                    Ok(vec![y])
                }
            };
            let built = OparaExecutor::builder().on_uncapturable(strict).build_fn(function, &one_on(0, &device)?);
            let mode = built.as_ref().ok().map(|fast| fast.report().mode());
            let expected = match (reads_back, strict) {
                (false, _) => Some(Mode::Graph),
                (true, OnUncapturable::Eager) => Some(Mode::Eager),
                (true, _) => None,
            };
            assert_eq!(mode, expected, "{:?}", built.err());
            assert_same(&[last], &[waves(9, (4, 6))?], format_args!("the state after building {mode:?}"));
        }
    }
    Ok(())
}
