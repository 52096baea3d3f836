//! Tensors that are several inputs, outputs or weights at once, and outputs that the caller overwrites.

use candle::{DType, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};

use crate::common::{answers_like, assert_same, gpu, one_on, replayed, waves};

#[test]
fn one_tensor_may_be_two_inputs_and_a_weight() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = waves(5, (4, 6))?.to_device(&device)?;
    let function = {
        let weight = weight.clone();
        move |t: &[Tensor]| Ok(vec![((&t[0] * 2.)? - (&t[1] * &weight)?)?, t[0].maximum(&t[1])?])
    };
    let other = |i: usize| Ok([one_on(i, &device)?, one_on(i + 4, &device)?].concat());
    let twins = |i: usize| Ok([one_on(i, &device)?, one_on(i, &device)?].concat());
    let same = |x: &Tensor| vec![x.clone(), x.clone()];
    let overlapping = |i: usize| {
        let x = waves(i, (5, 6))?.to_device(&device)?;
        Ok(vec![x.narrow(0, 0, 4)?, x.narrow(0, 1, 4)?])
    };
    for example in [other(0)?, same(&one_on(0, &device)?[0]), same(&weight), overlapping(0)?] {
        let fast = OparaExecutor::builder().build_fn(function.clone(), &example)?;
        assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
        answers_like(&fast, &function, other);
        answers_like(&fast, &function, twins);
        answers_like(&fast, &function, overlapping);
        answers_like(&fast, &function, |_| Ok(same(&weight)));
    }
    Ok(())
}

/// A function whose outputs have the shapes of its inputs.
fn step(t: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![(&t[0] + &t[1])?.tanh()?, t[0].affine(0.5, 0.1)?])
}

#[test]
fn outputs_of_one_call_are_inputs_of_the_next() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut expected = [one_on(0, &device)?, one_on(1, &device)?].concat();
    let fast = OparaExecutor::builder().build_fn(step, &expected)?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    let mut called = expected.clone();
    for i in 0..20 {
        expected = step(&expected)?;
        called = fast.call(&called)?;
        assert_same(&called, &expected, format_args!("call {i}"));
    }
    Ok(())
}

#[test]
fn borrowed_outputs_as_inputs_are_an_error_or_read_before_they_are_overwritten() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut expected = [one_on(0, &device)?, one_on(1, &device)?].concat();
    let fast = OparaExecutor::builder().build_fn(step, &expected)?;
    let mut borrowed = expected.clone();
    for i in 0..20 {
        expected = step(&expected)?;
        match fast.call_zero_copy(&borrowed, <[Tensor]>::to_vec) {
            Ok(outputs) => borrowed = outputs,
            Err(_) => return Ok(()),
        }
        assert_same(&borrowed, &expected, format_args!("call {i}"));
    }
    Ok(())
}

#[test]
fn an_input_may_be_overwritten_between_calls() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let inputs = [one_on(0, &device)?, one_on(1, &device)?].concat();
    let fast = OparaExecutor::builder().build_fn(step, &inputs)?;
    let mut answers = Vec::new();
    for i in 2..6 {
        inputs[0].slice_set(&one_on(i, &device)?[0], 0, 0)?;
        let expected = step(&inputs)?;
        answers.push((fast.call(&inputs)?, expected));
        // Queued after the call, which may still read the input.
        inputs[0].zero_set()?;
    }
    for (i, (got, expected)) in answers.into_iter().enumerate() {
        assert_same(&got, &expected, i);
    }
    Ok(())
}

#[test]
fn outputs_that_are_inputs_weights_views_or_each_other() {
    let Some(device) = gpu() else { return };
    let weight = waves(8, (3, 5)).and_then(|w| w.to_device(&device)).expect("a weight");
    let function = move |t: &[Tensor]| {
        let x = &t[0];
        let y = x.tanh()?;
        let row = y.narrow(0, 1, 1)?;
        Ok(vec![
            x.clone(),
            x.clone(),
            x.reshape((6, 4))?,
            x.narrow(1, 1, 3)?,
            x.t()?,
            y.clone(),
            row.clone(),
            y.flatten_all()?.narrow(0, 1, 7)?,
            y.t()?,
            row.broadcast_as((3, 6))?,
            y.reshape((2, 12))?,
            weight.clone(),
            weight.t()?,
            weight.flatten_all()?.narrow(0, 1, 3)?,
            row,
            y,
        ])
    };
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

#[test]
fn the_caller_may_overwrite_outputs_that_depend_on_no_input() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = waves(3, (2, 2))?.to_device(&device)?;
    let function = {
        let device = device.clone();
        move |_: &[Tensor]| {
            let ones = Tensor::ones((2, 3), DType::F32, &device)?;
            Ok(vec![
                Tensor::arange(0f32, 6., &device)?,
                ones.narrow(0, 1, 1)?,
                ones.reshape((3, 2))?,
                ones,
                Tensor::zeros(5, DType::U32, &device)?,
                Tensor::new(&[[1u8, 2], [3, 4]], &device)?.to_dtype(DType::F16)?,
                weight.relu()?,
            ])
        }
    };
    let fast = replayed(Mode::Graph, function.clone(), |i| one_on(i, &device));
    for output in fast.call(&one_on(1, &device)?)? {
        output.zero_set()?;
    }
    assert_same(&fast.call(&one_on(2, &device)?)?, &function(&[])?, "a call after one whose outputs were overwritten");
    Ok(())
}
