//! Modules on a GPU that are not functions of their inputs and weights alone: state, read-backs, random numbers, other
//! devices. Without a GPU, or without the `cuda` feature, each test says that it skips.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use candle::{DType, Device, Result, Tensor};
use candle_nn::{BatchNorm, Dropout};
use common::{
    answers_like, assert_same, calls_while_built, goes_on_like, gpu, isolated, one_on, refused, replayed, same_bits,
    second_gpu, stateful, waves,
};
use opara_candle::{Error, Mode, OnStateful, OparaExecutor};

/// Why a lock can be taken.
const FREE: &str = "no panic holds this lock";

/// `then` where `x` is large, else `x`: no small example shows what `then` holds.
fn where_large(x: &Tensor, then: &Tensor) -> Result<Tensor> {
    x.gt(100f32)?.where_cond(then, x)
}

/// Inputs that show it.
fn large(i: usize, device: &Device) -> Result<Tensor> {
    one_on(i, device)?[0].affine(1000., 500.)
}

#[test]
fn a_read_back_is_refused_by_its_span() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let _decoder = tracing::info_span!("decoder").entered();
        let hidden = t[0].sqr()?;
        let _sampler = opara_candle::scope("sampler");
        let mean = hidden.mean_all()?.to_scalar::<f32>()?;
        Ok(vec![(hidden * mean as f64)?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 4 bytes back", "decoder/sampler"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_read_back_whose_error_is_ignored_is_refused() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| Ok(vec![(&t[0] * t[0].mean_all()?.to_scalar::<f32>().unwrap_or(1.) as f64)?]);
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 4 bytes back"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_module_that_computes_on_the_cpu_is_refused_by_its_span() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let _span = tracing::info_span!("offloaded").entered();
        Ok(vec![t[0].relu()?.to_device(&Device::Cpu)?.sqr()?.to_device(t[0].device())?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 96 bytes back", "offloaded"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_module_that_waits_for_the_device_is_refused() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let y = t[0].relu()?;
        t[0].device().synchronize()?;
        Ok(vec![y.sqr()?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &[]);
    answers_like(&fast, function, |i| one_on(i, &device));
    replayed(Mode::Graph, |t: &[Tensor]| Ok(vec![t[0].relu()?]), |i| one_on(i, &device));
}

#[test]
fn weights_on_the_cpu_are_uploaded_once() {
    let Some(device) = gpu() else { return };
    let weight = waves(7, (256, 256)).expect("a weight");
    let function = move |t: &[Tensor]| {
        let weight = weight.to_device(t[0].device())?;
        Ok(vec![t[0].matmul(&weight)?, t[0].matmul(&weight.narrow(0, 0, 256)?.relu()?)?])
    };
    let fast = replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (8, 256))?.to_device(&device)?]));
    assert!(fast.report().folded >= 2, "the upload and the relu: {}", fast.report());
}

#[test]
fn a_table_that_the_first_call_makes_is_a_weight() {
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

/// A cache that holds one table, for the shape of the last call.
#[test]
fn a_table_that_another_shape_replaces_does_not_spoil_the_first() -> anyhow::Result<()> {
    isolated("a_table_that_another_shape_replaces_does_not_spoil_the_first", || {
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
        // What takes the memory of the table that is gone.
        let noise = (0..256).map(|_| Tensor::full(f32::NAN, (4, 6), &device)).collect::<Result<Vec<_>>>()?;
        answers_like(&fast, plain, |i| inputs(i, 4));
        assert_eq!(noise.len(), 256);
        Ok(())
    })
}

/// A decoder that keeps the rows of all calls, and answers with sums over them.
fn decoder() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let cache = Mutex::new(None::<Tensor>);
    move |t: &[Tensor]| {
        let rows = t[0].affine(2., 1.)?;
        let mut cache = cache.lock().expect(FREE);
        let all = match &*cache {
            Some(before) => Tensor::cat(&[before, &rows], 0)?,
            None => rows,
        };
        *cache = Some(all.clone());
        Ok(vec![all.sum_keepdim(0)?])
    }
}

/// The same whose answers hide it, so that captures alone show what is kept.
fn hidden_decoder() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let decoder = decoder();
    move |t: &[Tensor]| {
        let sums = decoder(t)?.remove(0);
        Ok(vec![where_large(&t[0], &sums.broadcast_as(t[0].shape())?.contiguous()?)?])
    }
}

#[test]
fn a_cache_that_grows_is_an_error_unless_it_is_declared() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = one_on(0, &device)?;
    for verify in [true, false] {
        stateful(OparaExecutor::builder().verify(verify), decoder(), &example, &["keeps state"]);
        stateful(OparaExecutor::builder().verify(verify), hidden_decoder(), &example, &["keeps state"]);
    }
    goes_on_like(decoder, |i| one_on(i, &device));
    goes_on_like(hidden_decoder, |i| Ok(vec![large(i, &device)?]));
    Ok(())
}

#[test]
fn state_that_a_later_shape_shows_is_the_error_of_that_call() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let decoder = decoder();
    let function = move |t: &[Tensor]| if t[0].dim(0)? == 5 { decoder(t) } else { Ok(vec![t[0].relu()?]) };
    let fast = OparaExecutor::builder().build_fn(function, &one_on(0, &device)?)?;
    let five = [waves(0, (5, 6))?.to_device(&device)?];
    for _ in 0..2 {
        assert!(matches!(fast.call(&five), Err(Error::Stateful { .. })));
    }
    assert_same(&fast.call(&one_on(1, &device)?)?, &[one_on(1, &device)?[0].relu()?], "the shape that keeps no state");
    Ok(())
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
        assert_eq!(fast.report().mode, mode, "{}", fast.report());
        counts.push(calls);
    }
    assert_eq!(counts, [5, 7, 4, 0]);
    let (fast, calls) = calls_while_built(OparaExecutor::builder(), add, &ids)?;
    assert_eq!((fast.report().mode, calls), (Mode::Graph, 4), "{}", fast.report());
    assert_eq!((fast.report().verified_inputs, fast.report().same_in_all), (1, vec![0]));
    Ok(())
}

/// Out of range, an id takes the GPU's context down.
#[test]
fn ids_that_begin_at_one_are_never_fed_as_others() -> anyhow::Result<()> {
    isolated("ids_that_begin_at_one_are_never_fed_as_others", || {
        let Some(device) = gpu() else { return Ok(()) };
        let table = waves(3, (4, 5))?.to_device(&device)?;
        let function = move |t: &[Tensor]| Ok(vec![table.index_select(&(&t[0] - t[0].ones_like()?)?, 0)?.tanh()?]);
        let inputs = |i: usize| Ok(vec![Tensor::full(1 + (i % 4) as u32, 3, &device)?]);
        replayed(Mode::Graph, function.clone(), inputs);
        let builder = OparaExecutor::builder().example(&inputs(3)?);
        let fast = builder.build_fn(function.clone(), &inputs(0)?)?;
        let report = fast.report();
        assert_eq!(
            (report.mode, report.verified_inputs, &report.same_in_all[..]),
            (Mode::Graph, 2, &[][..]),
            "{report}"
        );
        answers_like(&fast, function, inputs);
        Ok(())
    })
}

/// Building calls a module with copies.
#[test]
fn building_writes_to_no_example() -> anyhow::Result<()> {
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

/// A pass that is refused in the middle of its capture may have left tensors in the module.
#[test]
fn what_a_refused_module_keeps_can_be_used() -> anyhow::Result<()> {
    isolated("what_a_refused_module_keeps_can_be_used", || {
        let Some(device) = gpu() else { return Ok(()) };
        let kept = Arc::new(Mutex::new(None::<Tensor>));
        let next = |x: &Tensor, before: Option<&Tensor>| -> Result<(Tensor, Tensor)> {
            let y = x.affine(2., 1.)?;
            let sum = before.map_or(Ok(y.clone()), |before| &y + before)?;
            Ok((y, sum))
        };
        let function = {
            let kept = kept.clone();
            move |t: &[Tensor]| {
                let mut kept = kept.lock().expect(FREE);
                let (y, sum) = next(&t[0], kept.as_ref())?;
                *kept = Some(y);
                let mean = sum.mean_all()?.to_scalar::<f32>()?;
                Ok(vec![(sum * mean as f64)?])
            }
        };
        let example = [Tensor::full(0.5f32, (4, 6), &device)?];
        stateful(OparaExecutor::builder(), function.clone(), &example, &["other outputs"]);
        let values = || kept.lock().expect(FREE).as_ref().map(|t| t.flatten_all()?.to_vec1::<f32>()).transpose();
        let left = values()?.unwrap_or_default();
        // Of the example, or of the same with 0.75 times its floats.
        assert!(left.iter().all(|v| [2., 1.75].contains(v)), "left by a call while it was built: {left:?}");
        for i in 0..3 {
            let x = one_on(i, &device)?;
            let before = kept.lock().expect(FREE).clone();
            let (_, sum) = next(&x[0], before.as_ref())?;
            let expected = (&sum * sum.mean_all()?.to_scalar::<f32>()? as f64)?;
            assert_same(&function(&x)?, &[expected], i);
        }
        Ok(())
    })
}

/// Builds executors of a function of the number of the call and of a tensor, in three ways: as it is, so that the
/// examples show the difference that the number makes; with that difference in no output of the examples; and as it is,
/// but without verification. Each must be an error, and do what the function does if it is declared to keep state.
#[track_caller]
fn assert_state_is_found<F>(state: F)
where
    F: Fn(usize, &Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static,
{
    let Some(device) = gpu() else { return };
    for (hidden, verify) in [(false, true), (true, true), (false, false)] {
        let make = || {
            let (of, calls) = (state.clone(), AtomicUsize::new(0));
            move |t: &[Tensor]| {
                let _span = tracing::info_span!("count").entered();
                let y = of(calls.fetch_add(1, Ordering::Relaxed), &t[0])?;
                Ok::<_, candle::Error>(vec![if hidden { where_large(&t[0], &y)? } else { y }])
            }
        };
        let example = one_on(0, &device).expect("an input");
        stateful(OparaExecutor::builder().verify(verify), make(), &example, &["at `count`"]);
        goes_on_like(make, |i| Ok(vec![large(i, &device)?]));
    }
}

#[test]
fn a_counter_among_a_kernels_parameters_is_found() {
    assert_state_is_found(|n, x| x.affine((n + 2) as f64, 0.));
}

#[test]
fn a_counter_that_is_uploaded_is_found() {
    assert_state_is_found(|n, x| x.broadcast_add(&Tensor::new(n as f32, x.device())?));
}

#[test]
fn a_position_that_moves_on_is_found() {
    assert_state_is_found(|n, x| x.narrow(0, n % 4, 1)?.broadcast_as(x.shape())?.contiguous());
}

#[test]
fn two_branches_in_turns_are_found() {
    assert_state_is_found(|n, x| if n % 2 == 0 { x.relu() } else { x.sqr() });
}

#[test]
fn two_weights_in_turns_are_found() {
    let Some(device) = gpu() else { return };
    let weights = [1, 2].map(|i| one_on(i, &device).expect("a weight").remove(0));
    assert_state_is_found(move |n, x| x + &weights[n % 2]);
}

/// What a library's kernel is given may mean nothing, so that captures cannot tell; answers do.
#[test]
fn two_weights_of_a_product_in_turns_are_found() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = |i: usize| waves(i, (6, 6))?.to_device(&device);
    let weights = [weight(1)?, weight(2)?];
    let make = || {
        let (weights, calls) = (weights.clone(), AtomicUsize::new(0));
        move |t: &[Tensor]| Ok(vec![t[0].matmul(&weights[calls.fetch_add(1, Ordering::Relaxed) % 2])?])
    };
    stateful(OparaExecutor::builder(), make(), &one_on(0, &device)?, &["keeps state"]);
    goes_on_like(make, |i| one_on(i, &device));
    Ok(())
}

#[test]
fn another_number_of_outputs_is_found() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let make = || {
        let calls = AtomicUsize::new(0);
        move |t: &[Tensor]| {
            let mut outputs = vec![t[0].relu()?, t[0].sqr()?];
            outputs.truncate(1 + calls.fetch_add(1, Ordering::Relaxed) % 2);
            Ok(outputs)
        }
    };
    stateful(OparaExecutor::builder(), make(), &one_on(0, &device)?, &["tensors at one call"]);
    goes_on_like(make, |i| one_on(i, &device));
    Ok(())
}

/// The outputs say nothing of what the module writes, and where.
#[test]
fn rows_that_are_written_to_a_cache_of_fixed_size_are_found() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let cache = Tensor::zeros((64, 6), DType::F32, &device)?;
    let make = |cache: &Tensor| {
        let (cache, position) = (cache.clone(), AtomicUsize::new(0));
        move |t: &[Tensor]| {
            cache.slice_set(&t[0], 0, position.fetch_add(1, Ordering::Relaxed))?;
            Ok(vec![t[0].relu()?])
        }
    };
    let row = |i: usize| Ok::<_, candle::Error>(vec![waves(i, (1, 6))?.to_device(&device)?]);
    stateful(OparaExecutor::builder(), make(&cache.copy()?), &row(0)?, &[]);
    let builder = OparaExecutor::builder().on_stateful(OnStateful::Eager);
    let fast = builder.build_fn(make(&cache), &row(0)?)?;
    for i in 0..4 {
        assert_same(&fast.call(&row(i)?)?, &[row(i)?[0].relu()?], i);
        assert_same(&[cache.narrow(0, i, 1)?], &row(i)?, format_args!("row {i}"));
    }
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

/// State that lives on the device and is written in place may be replayed: each replay moves it on.
#[test]
fn running_statistics_go_on() -> anyhow::Result<()> {
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

/// Builds executors of a module that draws random numbers, as [`assert_state_is_found`] does. The reason must name the
/// span, and the numbers must be those that eager execution draws from the same seed.
fn assert_draws_are_found(draw: fn(&Tensor) -> Result<Tensor>) -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let shown = move |t: &[Tensor]| {
        let _span = tracing::info_span!("noise").entered();
        Ok(vec![draw(&t[0])?])
    };
    let hidden = move |t: &[Tensor]| Ok(vec![where_large(&t[0], &shown(t)?[0])?]);
    let same_draws =
        |fast: &OparaExecutor, function: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>| -> anyhow::Result<()> {
            let x = [large(1, &device)?];
            device.set_seed(7)?;
            let got = [fast.call(&x)?, fast.call(&x)?].concat();
            device.set_seed(7)?;
            assert_same(&got, &[function(&x)?, function(&x)?].concat(), "calls from the same seed");
            assert!(!same_bits(&got[0], &got[1])?, "every call draws anew");
            Ok(())
        };
    same_draws(&refused(shown, &one_on(0, &device)?, &["noise"]), &shown)?;
    same_draws(&refused(hidden, &one_on(0, &device)?, &["noise"]), &hidden)?;
    let fast = OparaExecutor::builder().verify(false).build_fn(shown, &one_on(0, &device)?)?;
    assert!(fast.report().mode == Mode::Eager && fast.report().reason.is_some(), "{}", fast.report());
    same_draws(&fast, &shown)
}

#[test]
fn uniform_numbers_are_found_by_their_span() -> anyhow::Result<()> {
    assert_draws_are_found(|x| x + Tensor::rand(0f32, 1., x.shape(), x.device())?)
}

#[test]
fn normal_numbers_are_found_by_their_span() -> anyhow::Result<()> {
    assert_draws_are_found(|x| x + Tensor::randn(0f32, 1., x.shape(), x.device())?)
}

#[test]
fn dropout_while_training_is_found_by_its_span() -> anyhow::Result<()> {
    assert_draws_are_found(|x| Dropout::new(0.5).forward(x, true))
}

#[test]
fn dropout_while_not_training_is_captured() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| Ok(vec![Dropout::new(0.5).forward(&t[0].relu()?, false)?]);
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

/// Wraps a module that computes on two devices in turns.
///
/// What crosses from one to the other is written by copies alone: candle has a kernel's output counted as read, not as
/// written, so that another stream which copies it does not wait for the kernel, in eager execution either.
fn assert_a_second_device_is_found(first: &Device, second: Device) -> anyhow::Result<()> {
    let function = move |t: &[Tensor]| {
        let _span = tracing::info_span!("elsewhere").entered();
        let there = t[0].to_device(&second)?;
        there.affine(2., 1.)?;
        Ok(vec![there.to_device(t[0].device())?.sqr()?])
    };
    let fast = refused(function.clone(), &one_on(0, first)?, &["elsewhere"]);
    answers_like(&fast, function, |i| one_on(i, first));
    Ok(())
}

#[test]
fn a_module_that_computes_on_a_second_stream_is_found_by_its_span() -> anyhow::Result<()> {
    isolated("a_module_that_computes_on_a_second_stream_is_found_by_its_span", || {
        if gpu().is_none() {
            return Ok(());
        }
        // Whose streams wait for each other where they share a tensor.
        assert_a_second_device_is_found(&Device::new_cuda_with_stream(0)?, Device::new_cuda_with_stream(0)?)
    })
}

#[test]
fn a_module_that_computes_on_a_second_gpu_is_found_by_its_span() -> anyhow::Result<()> {
    isolated("a_module_that_computes_on_a_second_gpu_is_found_by_its_span", || {
        let Some(device) = gpu() else { return Ok(()) };
        let Some(second) = second_gpu() else { return Ok(()) };
        assert_a_second_device_is_found(&device, second)
    })
}
