//! Steps with a state on a GPU, as an application runs them. Without a GPU, or without the `cuda` feature, each test says that it
//! skips.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use crate::common::writing::{assert_same, input, step, Writing};
use crate::common::{beside, devices, gpu};
use candle::{DType, Device, Result, Tensor};
use opara_candle::plan::trace::{AccessMode, Role};
use opara_candle::{
    ops, Builder, BuiltIn, Error, Mode, OnUncapturable, OparaExecutor, Snapshot, StateError, StepExecutor, StepState,
};

fn strict() -> Builder {
    OparaExecutor::builder().on_uncapturable(OnUncapturable::Error)
}

fn built(state: &Writing, device: &Device) -> opara_candle::Result<StepExecutor<Writing>> {
    strict().stress(4).build_step(step, &input(1, device)?, state)
}

#[test]
fn a_hundred_steps_equal_eager_execution() -> anyhow::Result<()> {
    for device in devices()? {
        let (mut state, eager) = (Writing::new(&device)?, Writing::new(&device)?);
        let executor = built(&state, &device)?;
        let report = executor.report();
        assert_eq!((report.mode(), report.is_verified(), &report.reason()), (Mode::Graph, true, &None), "{report}");
        assert_same(&state.tensors(), &Writing::new(&device)?.tensors());
        for i in 0..100 {
            let outputs = executor.step(&input(i, &device)?, &mut state)?;
            assert_same(&outputs, &step(&input(i, &device)?, &eager)?);
        }
        assert_same(&state.tensors(), &eager.tensors());
        assert_eq!(state.position()?, 100);
    }
    Ok(())
}

#[test]
fn a_cache_of_keys_and_values_gives_what_passes_over_all_tokens_give() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    Ok(crate::common::decoder::assert_writes_like_whole_passes(&device, Mode::Graph)?)
}

#[test]
fn operators_in_place_write_only_their_target() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let state = Writing::new(&device)?;
    let trace = built(&state, &device)?.trace(&input(1, &device)?, &state)?;
    let written = |name: &str| -> Vec<(Role, AccessMode, u64)> {
        let op = trace.ops.iter().find(|op| op.name.starts_with(name)).expect("it was launched");
        let written = op.accesses.iter().filter(|access| access.mode.writes());
        written.map(|access| (trace.buffers[access.buffer].role, access.mode, access.region.bytes())).collect()
    };
    assert_eq!(written("opara_elementwise_advance_u32"), [(Role::State(0), AccessMode::ReadWrite, 4)]);
    assert_eq!(written("opara_layout_write_rows_"), [(Role::State(1), AccessMode::ReadWrite, 120 * 3 * 4)]);
    assert_eq!(written("copy2d_f32"), [(Role::State(2), AccessMode::Write, 3 * 4)]);
    Ok(())
}

#[test]
fn two_threads_step_two_states_by_one_executor() -> anyhow::Result<()> {
    for device in devices()? {
        let executor = built(&Writing::new(&device)?, &device)?;
        let run = |offset: usize| -> opara_candle::Result<()> {
            let (mut state, eager) = (Writing::new(&device)?, Writing::new(&device)?);
            for i in 0..50 {
                let outputs = executor.step(&input(offset + i, &device)?, &mut state)?;
                assert_same(&outputs, &step(&input(offset + i, &device)?, &eager)?);
            }
            assert_same(&state.tensors(), &eager.tensors());
            Ok(())
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| run(1000));
            run(0)?;
            other.join().expect("no panic")
        })?;
    }
    Ok(())
}

#[test]
fn every_scheduler_steps_as_eager_execution_does() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for scheduler in BuiltIn::FIXED {
        let (mut state, eager) = (Writing::new(&device)?, Writing::new(&device)?);
        let executor = strict().scheduler(scheduler).benchmark_challengers(false).stress(4).build_step(
            step,
            &input(1, &device)?,
            &state,
        )?;
        for i in 0..20 {
            let outputs = executor.step(&input(i, &device)?, &mut state)?;
            assert_same(&outputs, &step(&input(i, &device)?, &eager)?);
        }
        assert_same(&state.tensors(), &eager.tensors());
    }
    Ok(())
}

#[test]
fn a_state_is_saved_put_back_forked_and_reset() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut state = Writing::new(&device)?;
    let executor = built(&state, &device)?;
    let run = |state: &mut Writing, inputs: std::ops::Range<usize>| -> opara_candle::Result<Vec<Tensor>> {
        for i in inputs {
            executor.step(&input(i, &device)?, state)?;
        }
        Ok(state.fork()?.tensors())
    };
    run(&mut state, 0..5)?;
    let (saved, mut fork) = (Snapshot::of(&state)?, state.fork()?);
    let after = run(&mut state, 5..9)?;
    assert_eq!(fork.position()?, 5);
    assert_same(&run(&mut fork, 5..9)?, &after);
    saved.restore(&mut state)?;
    assert_same(&run(&mut state, 5..9)?, &after);
    state.reset()?;
    assert_same(&state.tensors(), &Writing::new(&device)?.tensors());
    Ok(())
}

#[test]
fn reads_of_a_state_are_not_folded_and_candles_own_writes_are_state() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let read = |_: &[Tensor], length: &Tensor| Ok(vec![length.to_dtype(DType::F32)?.affine(2., 0.)?]);
    let mut length = Tensor::new(&[3u32], &device)?;
    let executor = strict().build_step(read, &[], &length)?;
    assert_eq!((executor.report().mode(), executor.report().counts().folded), (Mode::Graph, 0));
    assert_eq!(executor.step(&[], &mut length)?[0].to_vec1::<f32>()?, [6.]);
    ops::advance(&length, 4)?;
    assert_eq!(executor.step(&[], &mut length)?[0].to_vec1::<f32>()?, [14.]);
    let trace = executor.trace(&[], &length)?;
    assert!(trace.buffers.iter().any(|buffer| buffer.role == Role::State(0)));

    let set = |x: &[Tensor], rows: &Tensor| {
        rows.slice_set(&x[0].sqr()?, 0, 1)?;
        rows.slice_set(&rows.narrow(0, 1, 1)?.affine(2., 0.)?, 0, 3)?;
        rows.narrow(0, 0, 1)?.zero_set()?;
        Ok(vec![rows.sum_all()?])
    };
    let x = [Tensor::new(&[[2f32, 3.]], &device)?];
    let mut rows = Tensor::ones((4, 2), DType::F32, &device)?;
    let executor = strict().build_step(set, &x, &rows)?;
    assert_eq!(rows.sum_all()?.to_scalar::<f32>()?, 8., "building left it alone");
    assert_eq!(executor.step(&x, &mut rows)?[0].to_scalar::<f32>()?, 13. + 2. + 26.);
    assert_eq!(rows.to_vec2::<f32>()?, [[0., 0.], [4., 9.], [1., 1.], [8., 18.]]);
    Ok(())
}

#[test]
fn states_that_cannot_be_stepped_are_refused() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let add = |x: &[Tensor], sum: &Tensor| {
        ops::assign(sum, &ops::add(sum, &x[0])?)?;
        Ok(vec![sum.clone()])
    };
    let x = [Tensor::ones(4, DType::F32, &device)?];
    let executor = strict().build_step(add, &x, &Tensor::zeros(4, DType::F32, &device)?)?;
    let refused = |mut state: Tensor| executor.step(&x, &mut state).expect_err("it cannot be stepped");
    assert!(matches!(
        refused(Tensor::zeros(4, DType::F32, &Device::Cpu)?),
        Error::State(StateError::Device { index: 0, .. })
    ));
    let odd = Tensor::zeros(5, DType::F32, &device)?.narrow(0, 1, 4)?;
    assert!(matches!(refused(odd), Error::State(StateError::Layout { index: 0, .. })));
    assert!(matches!(refused(x[0].clone()), Error::State(StateError::Shared { index: 0, .. })));
    let mut sum = Tensor::zeros(4, DType::F32, &device)?;
    let mut lent = executor.call_zero_copy(&x, &mut sum, |outputs| outputs[0].clone())?;
    assert!(
        matches!(executor.step(&x, &mut lent), Err(Error::State(StateError::Shared { .. }))),
        "an output of the executor"
    );
    executor.step(&x, &mut sum)?;
    assert_eq!(sum.to_vec1::<f32>()?, [2.; 4]);
    Ok(())
}

#[test]
fn executors_are_built_while_another_thread_steps() -> anyhow::Result<()> {
    for device in devices()? {
        let mut state = Writing::new(&device)?;
        let executor = built(&state, &device)?;
        let eager = Writing::new(&device)?;
        let build = |_| Ok(built(&Writing::new(&device)?, &device).map(drop)?);
        let steps = || {
            for i in 0..100 {
                let outputs = executor.step(&input(i, &device)?, &mut state)?;
                assert_same(&outputs, &step(&input(i, &device)?, &eager)?);
            }
            Ok(())
        };
        beside(steps, &[&build])?;
        assert_same(&state.tensors(), &eager.tensors());
    }
    Ok(())
}

/// Counts up, and passes the tokens through a long chain of operators, to keep the GPU busy.
fn count(_: &[Tensor], tokens: &Tensor) -> Result<Vec<Tensor>> {
    ops::advance(tokens, 1)?;
    Ok(vec![ops::affine(tokens, 1., 0.)?])
}

#[test]
fn a_stream_runs_ahead_and_ends_where_it_should() -> anyhow::Result<()> {
    for device in devices()? {
        let start = || Tensor::new(&[0u32, 100], &device);
        let mut tokens = start()?;
        let executor = strict().build_step(count, &[], &tokens)?;
        assert_eq!(executor.report().mode(), Mode::Graph, "{}", executor.report());
        for ahead in [0, 1, 4, 16] {
            let mut tokens = start()?;
            let mut stream = executor.stream(&mut tokens, ahead).until([2, 104]);
            let all = stream.by_ref().collect::<opara_candle::Result<Vec<_>>>()?;
            assert_eq!(all, [[1, 101], [2, 102], [3, 103], [4, 104]]);
            let steps = stream.steps() as u32;
            assert!((4..4 + ahead.max(1) as u32).contains(&steps), "{steps} steps, {ahead} ahead");
            assert_eq!(tokens.to_vec1::<u32>()?, [steps, 100 + steps]);
            let mut tokens = start()?;
            assert_eq!(executor.stream(&mut tokens, ahead).at_most(9).count(), 9);
            assert_eq!(tokens.to_vec1::<u32>()?, [9, 109], "no step runs beyond the limit");
        }
        let mut stream = executor.stream(&mut tokens, 5);
        assert_eq!(stream.next().transpose()?, Some(vec![1, 101]));
        drop(stream);
        assert_eq!(tokens.to_vec1::<u32>()?, [5, 105], "a stream that is dropped has gone ahead");
        let long = executor.stream(&mut tokens, 8).at_most(2000).collect::<opara_candle::Result<Vec<_>>>()?;
        assert!(long.iter().zip(6..).all(|(tokens, i)| *tokens == [i, 100 + i]));
    }
    Ok(())
}

#[test]
fn a_step_that_cannot_be_captured_steps_eagerly() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let reads_back = |_: &[Tensor], s: &Tensor| {
        let at = s.to_vec1::<u32>()?[0];
        ops::advance(s, at + 1)?;
        Ok(vec![s.clone()])
    };
    let mut state = Tensor::new(&[1u32], &device)?;
    let executor = OparaExecutor::builder().build_step(reads_back, &[], &state)?;
    assert_eq!(executor.report().mode(), Mode::Eager);
    assert_eq!(state.to_vec1::<u32>()?, [1]);
    let first = executor.step(&[], &mut state)?;
    assert_eq!(executor.stream(&mut state, 3).at_most(2).collect::<opara_candle::Result<Vec<_>>>()?, [[7], [15]]);
    assert_eq!(first[0].to_vec1::<u32>()?, [3]);
    Ok(())
}

#[test]
fn rechecks_compare_outputs_and_state() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let strange = Arc::new(AtomicBool::new(false));
    let seen = strange.clone();
    let step = move |x: &[Tensor], sum: &Tensor| {
        let factor = if seen.load(Ordering::SeqCst) { 10. } else { 1. };
        ops::assign(sum, &ops::add(sum, &ops::affine(&x[0], factor, 0.)?)?)?;
        Ok(vec![])
    };
    let x = [Tensor::ones(3, DType::F32, &device)?];
    let mut sum = Tensor::zeros(3, DType::F32, &device)?;
    let executor = strict().recheck(1).build_step(step, &x, &sum)?;
    executor.step(&x, &mut sum)?;
    assert_eq!((sum.to_vec1::<f32>()?, executor.report().rechecks()), (vec![1.; 3], 1));
    strange.store(true, Ordering::SeqCst);
    executor.step(&x, &mut sum)?;
    assert_eq!((sum.to_vec1::<f32>()?, executor.report().mismatches()), (vec![11.; 3], 1));
    Ok(())
}
