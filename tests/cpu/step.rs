//! Steps that carry a state on, on the CPU.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use candle::{DType, Device, Result, Tensor};
use opara_candle::plan::trace::Role;
use opara_candle::{
    ops, Builder, Error, Mode, OnUncapturable, OparaExecutor, Snapshot, StateError, StepExecutor, StepState,
};

use super::common::writing::{assert_same, input, step, Writing};

const CPU: &Device = &Device::Cpu;

fn strict() -> Builder {
    OparaExecutor::builder().on_uncapturable(OnUncapturable::Error)
}

fn built(state: &Writing) -> opara_candle::Result<StepExecutor<Writing>> {
    strict().build_step(step, &input(1, CPU)?, state)
}

#[test]
fn a_hundred_steps_equal_eager_execution() -> opara_candle::Result<()> {
    let (mut state, eager) = (Writing::new(CPU)?, Writing::new(CPU)?);
    let executor = built(&state)?;
    let report = executor.report();
    assert_eq!((report.mode(), report.is_verified(), &report.reason()), (Mode::Threads, true, &None), "{report}");
    assert_same(&state.tensors(), &Writing::new(CPU)?.tensors());
    for i in 0..100 {
        let outputs = executor.step(&input(i, CPU)?, &mut state)?;
        assert_same(&outputs, &step(&input(i, CPU)?, &eager)?);
        assert_same(&state.tensors(), &eager.tensors());
    }
    assert_eq!(state.position()?, 100);
    Ok(())
}

#[test]
fn two_threads_step_two_states_by_one_executor() -> opara_candle::Result<()> {
    let executor = built(&Writing::new(CPU)?)?;
    let both = Barrier::new(2);
    let run = |offset: usize| -> opara_candle::Result<()> {
        let (mut state, eager) = (Writing::new(CPU)?, Writing::new(CPU)?);
        for i in 0..50 {
            both.wait();
            let outputs = executor.step(&input(offset + i, CPU)?, &mut state)?;
            assert_same(&outputs, &step(&input(offset + i, CPU)?, &eager)?);
            assert_same(&state.tensors(), &eager.tensors());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(1000));
        run(0)?;
        other.join().expect("no panic")
    })
}

#[test]
fn a_state_is_saved_put_back_forked_and_reset() -> opara_candle::Result<()> {
    let mut state = Writing::new(CPU)?;
    let executor = built(&state)?;
    let run = |state: &mut Writing, inputs: std::ops::Range<usize>| -> opara_candle::Result<Vec<Tensor>> {
        for i in inputs {
            executor.step(&input(i, CPU)?, state)?;
        }
        Snapshot::of(state).and_then(|saved| {
            let mut copy = Writing::new(CPU)?;
            saved.restore(&mut copy)?;
            Ok(copy.tensors())
        })
    };
    run(&mut state, 0..5)?;
    let (saved, mut fork) = (Snapshot::of(&state)?, state.fork()?);
    let after = run(&mut state, 5..9)?;
    assert_eq!(fork.position()?, 5, "it goes on by itself");
    assert_same(&run(&mut fork, 5..9)?, &after);
    saved.restore(&mut state)?;
    assert_same(&run(&mut state, 5..9)?, &after);
    state.reset()?;
    assert_same(&state.tensors(), &Writing::new(CPU)?.tensors());
    run(&mut state, 0..5)?;
    assert_same(&run(&mut state, 5..9)?, &after);
    assert!(matches!(
        saved.restore(&mut vec![Tensor::zeros(1, DType::U32, CPU)?]),
        Err(Error::State(StateError::Count { .. }))
    ));
    Ok(())
}

#[test]
fn state_has_a_role_and_reads_of_it_are_not_folded() -> anyhow::Result<()> {
    // Reads only the state. Without the role of state, everything would be a constant.
    let read = |_: &[Tensor], length: &Tensor| Ok(vec![ops::affine(&ops::to_dtype(length, DType::F32)?, 2., 0.)?]);
    let mut length = Tensor::new(&[3u32], CPU)?;
    let executor = strict().build_step(read, &[], &length)?;
    assert_eq!((executor.report().mode(), executor.report().counts().folded), (Mode::Threads, 0));
    assert_eq!(executor.step(&[], &mut length)?[0].to_vec1::<f32>()?, [6.]);
    ops::advance(&length, 4)?;
    assert_eq!(executor.step(&[], &mut length)?[0].to_vec1::<f32>()?, [14.]);
    let trace = executor.trace(&[], &length)?;
    assert_eq!(trace.buffers.iter().filter(|buffer| buffer.role == Role::State(0)).count(), 1);
    let mut file = Vec::new();
    trace.write_to(&mut file)?;
    assert_eq!(opara_candle::plan::trace::Trace::read_from(&file[..])?, trace);
    Ok(())
}

#[test]
fn outputs_belong_to_the_caller() -> opara_candle::Result<()> {
    let mut state = Writing::new(CPU)?;
    let executor = built(&state)?;
    let first = executor.step(&input(3, CPU)?, &mut state)?;
    let values = first[0].to_vec1::<f32>()?;
    executor.step(&input(4, CPU)?, &mut state)?;
    assert_eq!(first[0].to_vec1::<f32>()?, values, "an output that lies in the state was copied");
    let lent = executor.call_zero_copy(&input(5, CPU)?, &mut state, |outputs| outputs[1].to_vec1::<u32>())??;
    assert_eq!((lent, state.position()?), (vec![3], 3));
    Ok(())
}

#[test]
fn other_shapes_of_inputs_are_built_without_moving_the_state() -> opara_candle::Result<()> {
    let add = |x: &[Tensor], sum: &Tensor| {
        ops::assign(sum, &ops::add(sum, &ops::sum_keepdim(&x[0], 0)?)?)?;
        Ok(vec![])
    };
    let rows = |n: usize| Tensor::ones((n, 2), DType::F32, CPU).map(|x| [x]);
    let mut sum = Tensor::zeros((1, 2), DType::F32, CPU)?;
    let executor = strict().build_step(add, &rows(1)?, &sum)?;
    for n in [3, 1, 4, 3] {
        executor.step(&rows(n)?, &mut sum)?;
    }
    assert_eq!(sum.to_vec2::<f32>()?, [[11., 11.]]);
    assert!(matches!(executor.step(&[], &mut sum), Err(Error::InputCount { expected: 1, got: 0 })));
    Ok(())
}

#[test]
fn states_that_cannot_be_stepped_are_refused_with_the_reason() -> opara_candle::Result<()> {
    type State = Vec<Tensor>;
    let keep = |x: &[Tensor], s: &State| {
        ops::assign(&s[0], &x[0])?;
        Ok(vec![ops::add(&s[0], &s[1])?])
    };
    let zeros = |n: usize| Tensor::zeros((n, n), DType::F32, CPU);
    let x = [Tensor::ones((2, 2), DType::F32, CPU)?];
    let executor = strict().build_step(keep, &x, &vec![zeros(2)?, zeros(2)?])?;
    let refused = |mut state: State| executor.step(&x, &mut state).expect_err("it cannot be stepped");
    assert!(matches!(refused(vec![zeros(2)?]), Error::State(StateError::Count { expected: 2, got: 1 })));
    assert!(matches!(refused(vec![zeros(2)?, zeros(3)?]), Error::State(StateError::Shape { index: 1, .. })));
    let other_type = Tensor::zeros((2, 2), DType::F64, CPU)?;
    assert!(matches!(
        refused(vec![other_type, zeros(2)?]),
        Error::State(StateError::Shape { index: 0, got_dtype: DType::F64, .. })
    ));
    let shared = zeros(2)?;
    assert!(matches!(refused(vec![shared.clone(), shared]), Error::State(StateError::Shared { index: 1, .. })));
    let error = refused(vec![zeros(2)?, x[0].clone()]);
    assert!(
        matches!(&error, Error::State(StateError::Shared { index: 1, other }) if other.contains("input 0")),
        "{error}"
    );
    assert!(matches!(refused(vec![zeros(2)?.t()?, zeros(2)?]), Error::State(StateError::Layout { index: 0, .. })));
    let built = strict().build_step(keep, &x, &vec![zeros(2)?.t()?, zeros(2)?]);
    assert!(matches!(built, Err(Error::State(StateError::Layout { index: 0, .. }))));
    Ok(())
}

#[test]
fn host_code_that_reads_the_state_runs_eagerly() -> opara_candle::Result<()> {
    // A replay would always add to the row of the recording.
    let row = |x: &[Tensor], s: &Vec<Tensor>| {
        let at = s[0].to_vec1::<u32>()?[0] as usize;
        let sum = ops::sum_keepdim(&ops::narrow(&s[1], 0, at, 1)?, 0)?;
        ops::advance(&s[0], 1)?;
        Ok(vec![ops::add(&sum, &x[0])?])
    };
    let rows = Tensor::arange(0f32, 8., CPU)?.reshape((8, 1))?;
    let mut state = vec![Tensor::zeros(1, DType::U32, CPU)?, rows];
    let x = [Tensor::zeros((1, 1), DType::F32, CPU)?];
    let executor = OparaExecutor::builder().build_step(row, &x, &state)?;
    assert_eq!(executor.report().mode(), Mode::Eager, "{}", executor.report());
    for i in 0..8 {
        assert_eq!(executor.step(&x, &mut state)?[0].to_vec2::<f32>()?, [[i as f32]]);
    }
    Ok(())
}

#[test]
fn writes_to_undeclared_state_run_eagerly_and_building_undoes_them() -> opara_candle::Result<()> {
    let weight = Tensor::zeros(2, DType::F32, CPU)?;
    let x = [Tensor::ones(2, DType::F32, CPU)?];
    let captured = weight.clone();
    let to_a_weight = move |x: &[Tensor]| {
        ops::assign(&ops::reshape(&captured, (2,))?, &ops::add(&captured, &x[0])?)?;
        Ok(vec![ops::relu(&captured)?])
    };
    let executor = OparaExecutor::builder().build_fn(to_a_weight, &x)?;
    let reason = executor.report().reason().unwrap_or_default().to_owned();
    assert!(executor.report().mode() == Mode::Eager && reason.contains("not declared as state"), "{reason}");
    assert_eq!(weight.to_vec1::<f32>()?, [0., 0.]);
    assert_eq!(executor.call(&x)?[0].to_vec1::<f32>()?, [1., 1.]);

    let to_an_input = |x: &[Tensor]| {
        ops::advance(&x[0], 1)?;
        Ok(vec![ops::to_dtype(&x[0], DType::F32)?])
    };
    let counter = [Tensor::zeros(1, DType::U32, CPU)?];
    let executor = OparaExecutor::builder().build_fn(to_an_input, &counter)?;
    let reason = executor.report().reason().unwrap_or_default().to_owned();
    assert!(executor.report().mode() == Mode::Eager && reason.contains("called with"), "{reason}");
    assert_eq!(counter[0].to_vec1::<u32>()?, [0]);
    Ok(())
}

#[test]
fn an_intermediate_result_may_be_written_in_place() -> opara_candle::Result<()> {
    let overwrite = |x: &[Tensor]| {
        let sum = ops::add(&x[0], &x[0])?;
        let before = ops::affine(&sum, 1., 0.5)?;
        ops::assign(&ops::reshape(&sum, (2,))?, &ops::sqr(&x[0])?)?;
        Ok(vec![before, ops::affine(&sum, 1., 0.25)?])
    };
    let x = [Tensor::new(&[3f32, 5.], CPU)?];
    let executor = strict().build_fn(overwrite, &x)?;
    assert_eq!(executor.report().mode(), Mode::Threads);
    let outputs = executor.call(&x)?;
    assert_eq!(outputs[0].to_vec1::<f32>()?, [6.5, 10.5]);
    assert_eq!(outputs[1].to_vec1::<f32>()?, [9.25, 25.25]);
    Ok(())
}

#[test]
fn a_state_goes_on_after_a_fault_once_it_is_put_back() -> opara_candle::Result<()> {
    let fails = Arc::new(AtomicU32::new(0));
    let seen = fails.clone();
    let step = move |x: &[Tensor], sum: &Tensor| {
        let seen = seen.clone();
        ops::assign(sum, &ops::add(sum, &x[0])?)?;
        let checked = ops::custom("checked", &[sum], move |t| match seen.load(Ordering::SeqCst) {
            0 => t[0].affine(1., 0.),
            1 => candle::bail!("a fault on purpose"),
            _ => panic!("a panic on purpose"),
        })?;
        ops::assign(sum, &ops::affine(&checked, 2., 0.)?)?;
        Ok(vec![])
    };
    let x = [Tensor::ones(1, DType::F32, CPU)?];
    let mut sum = Tensor::zeros(1, DType::F32, CPU)?;
    let executor = strict().build_step(step, &x, &sum)?;
    executor.step(&x, &mut sum)?;
    for fault in [1, 2] {
        let saved = Snapshot::of(&sum)?;
        fails.store(fault, Ordering::SeqCst);
        assert!(executor.step(&x, &mut sum).is_err());
        fails.store(0, Ordering::SeqCst);
        saved.restore(&mut sum)?;
        executor.step(&x, &mut sum)?;
    }
    assert_eq!(sum.to_vec1::<f32>()?, [14.]);
    Ok(())
}

#[test]
fn a_recheck_that_finds_a_difference_leaves_the_state_of_the_module() -> opara_candle::Result<()> {
    let factor = Arc::new(AtomicU32::new(1));
    let seen = factor.clone();
    // The host's number becomes a constant of the recording.
    let step = move |x: &[Tensor], sum: &Tensor| {
        let factor = f64::from(seen.load(Ordering::SeqCst));
        ops::assign(sum, &ops::add(sum, &ops::affine(&x[0], factor, 0.)?)?)?;
        Ok(vec![sum.clone()])
    };
    let x = [Tensor::ones(1, DType::F32, CPU)?];
    let mut sum = Tensor::zeros(1, DType::F32, CPU)?;
    let executor = strict().recheck(1).build_step(step, &x, &sum)?;
    executor.step(&x, &mut sum)?;
    assert_eq!((sum.to_vec1::<f32>()?, executor.report().rechecks()), (vec![1.], 1));
    factor.store(10, Ordering::SeqCst);
    let outputs = executor.step(&x, &mut sum)?;
    assert_eq!((outputs.len(), outputs[0].to_vec1::<f32>()?, sum.to_vec1::<f32>()?), (1, vec![11.], vec![11.]));
    assert_eq!((executor.report().mismatches(), executor.report().mode()), (1, Mode::Eager));
    executor.step(&x, &mut sum)?;
    assert_eq!(sum.to_vec1::<f32>()?, [21.]);
    Ok(())
}

/// A pool of rows that several states share. Each state writes its own row.
struct Pooled {
    pool: Tensor,
    row: Tensor,
}

impl StepState for Pooled {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.pool.clone(), self.row.clone()]
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        Self { pool: tensors[0].clone(), row: tensors[1].clone() }
    }

    /// The last row is a spare one.
    fn scratch(&self) -> opara_candle::Result<Self> {
        let spare = Tensor::new(&[self.pool.dim(0)? as u32 - 1], CPU)?;
        Ok(Self { pool: self.pool.clone(), row: spare })
    }
}

#[test]
fn a_scratch_state_may_lend_a_part_of_a_pool() -> opara_candle::Result<()> {
    let put = |x: &[Tensor], s: &Pooled| {
        ops::write_rows(&s.pool, &x[0], &s.row)?;
        Ok(vec![ops::index_select(&s.pool, &s.row, 0)?])
    };
    let pool = Tensor::zeros((4, 2), DType::F32, CPU)?;
    let mut state = Pooled { pool: pool.clone(), row: Tensor::new(&[1u32], CPU)? };
    let x = [Tensor::new(&[[5f32, 6.]], CPU)?];
    let executor = strict().build_step(put, &x, &state)?;
    assert_eq!(executor.report().mode(), Mode::Threads, "{}", executor.report());
    let rows = || pool.narrow(0, 0, 3)?.to_vec2::<f32>();
    assert_eq!(rows()?, [[0.; 2]; 3], "building used the spare row alone");
    assert_eq!(executor.step(&x, &mut state)?[0].to_vec2::<f32>()?, [[5., 6.]]);
    assert_eq!(rows()?, [[0., 0.], [5., 6.], [0., 0.]]);
    Ok(())
}

/// Tokens that count up, one row by one and one by two.
fn counting() -> Result<Tensor> {
    Tensor::new(&[0u32, 100], CPU)
}

fn count(_: &[Tensor], tokens: &Tensor) -> Result<Vec<Tensor>> {
    ops::advance(tokens, 1)?;
    Ok(vec![tokens.clone()])
}

#[test]
fn a_stream_ends_at_stop_tokens_at_its_limit_and_where_it_is_dropped() -> opara_candle::Result<()> {
    let mut tokens = counting()?;
    let executor = strict().build_step(count, &[], &tokens)?;
    let all = |stream: opara_candle::StepStream<Tensor>| stream.collect::<opara_candle::Result<Vec<_>>>();
    let until = all(executor.stream(&mut tokens, 3).until([2, 104]))?;
    assert_eq!(until, [[1, 101], [2, 102], [3, 103], [4, 104]], "the last row to stop ends it");
    tokens.reset()?;
    assert_eq!(all(executor.stream(&mut tokens, 3).at_most(2))?, [[1, 1], [2, 2]]);
    assert!(all(executor.stream(&mut tokens, 3).at_most(0))?.is_empty());
    let mut stream = executor.stream(&mut tokens, 3);
    let taken: Vec<_> = stream.by_ref().take(2).collect::<opara_candle::Result<_>>()?;
    let steps = stream.steps();
    drop(stream);
    assert_eq!((taken, tokens.to_vec1::<u32>()?), (vec![vec![3, 3], vec![4, 4]], vec![2 + steps as u32; 2]));

    let floats = strict().build_step(
        |_: &[Tensor], s: &Tensor| Ok(vec![ops::sqr(s)?]),
        &[],
        &Tensor::ones(1, DType::F32, CPU)?,
    )?;
    let mut one = Tensor::ones(1, DType::F32, CPU)?;
    let mut stream = floats.stream(&mut one, 1);
    assert!(matches!(stream.next(), Some(Err(Error::NotTokens { got: Some(DType::F32) }))));
    assert!(stream.next().is_none());
    Ok(())
}

#[test]
fn an_executor_is_built_while_another_thread_steps() -> opara_candle::Result<()> {
    let mut state = Writing::new(CPU)?;
    let executor = built(&state)?;
    let eager = Writing::new(CPU)?;
    thread::scope(|scope| {
        let building = scope.spawn(|| (0..3).try_for_each(|_| built(&Writing::new(CPU)?).map(drop)));
        for i in 0..100 {
            let outputs = executor.step(&input(i, CPU)?, &mut state)?;
            assert_same(&outputs, &step(&input(i, CPU)?, &eager)?);
        }
        building.join().expect("no panic")
    })?;
    assert_same(&state.tensors(), &eager.tensors());
    Ok(())
}
