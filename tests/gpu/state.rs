//! Modules on a GPU that keep state on the host between calls. Tests skip without a GPU or the feature `cuda`, and say
//! so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{assert_same, assert_same_state_as, gpu, isolated, large, one_on, stateful, waves, where_large};
use candle::{DType, Result, Tensor};
use opara_candle::{Error, OnStateful, OparaExecutor};

/// Message for taking a lock.
const FREE: &str = "no panic holds this lock";

/// A decoder that keeps the rows of all calls, and returns sums over them.
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

/// The same with outputs that hide it, so that only captures reveal the state.
fn hidden_decoder() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let decoder = decoder();
    move |t: &[Tensor]| {
        let sums = decoder(t)?.remove(0);
        Ok(vec![where_large(&t[0], &sums.broadcast_as(t[0].shape())?.contiguous()?)?])
    }
}

#[test]
fn a_growing_cache_is_an_error_unless_state_is_declared() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = one_on(0, &device)?;
    for verify in [true, false] {
        stateful(OparaExecutor::builder().verify(verify), decoder(), &example, &["keeps state"]);
        stateful(OparaExecutor::builder().verify(verify), hidden_decoder(), &example, &["keeps state"]);
    }
    assert_same_state_as(decoder, |i| one_on(i, &device));
    assert_same_state_as(hidden_decoder, |i| Ok(vec![large(i, &device)?]));
    Ok(())
}

#[test]
fn state_that_only_a_later_shape_shows_is_an_error_of_that_call() -> anyhow::Result<()> {
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

/// A pass whose capture was refused midway may have left tensors in the module.
#[test]
fn tensors_kept_by_a_refused_module_are_usable() -> anyhow::Result<()> {
    isolated(|| {
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
        // From the example, or from the example with floats scaled by 0.75.
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

/// Builds executors of a function of the call number and of a tensor, in three ways: as it is, so that the examples
/// show the effect of the number; with that effect hidden from the examples' outputs; and as it is, but without
/// verification. Each must be an error, and must behave like the function if it is declared to keep state.
#[track_caller]
fn assert_state_is_detected<F>(state: F)
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
        assert_same_state_as(make, |i| Ok(vec![large(i, &device)?]));
    }
}

#[test]
fn a_counter_in_a_kernel_argument_is_detected() {
    assert_state_is_detected(|n, x| x.affine((n + 2) as f64, 0.));
}

#[test]
fn an_uploaded_counter_is_detected() {
    assert_state_is_detected(|n, x| x.broadcast_add(&Tensor::new(n as f32, x.device())?));
}

#[test]
fn an_advancing_position_is_detected() {
    assert_state_is_detected(|n, x| x.narrow(0, n % 4, 1)?.broadcast_as(x.shape())?.contiguous());
}

#[test]
fn alternating_branches_are_detected() {
    assert_state_is_detected(|n, x| if n % 2 == 0 { x.relu() } else { x.sqr() });
}

#[test]
fn alternating_weights_are_detected() {
    let Some(device) = gpu() else { return };
    let weights = [1, 2].map(|i| one_on(i, &device).expect("a weight").remove(0));
    assert_state_is_detected(move |n, x| x + &weights[n % 2]);
}

/// A library kernel's parameters may be meaningless, so captures cannot reveal it; answers do.
#[test]
fn alternating_weights_of_a_matmul_are_detected() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = |i: usize| waves(i, (6, 6))?.to_device(&device);
    let weights = [weight(1)?, weight(2)?];
    let make = || {
        let (weights, calls) = (weights.clone(), AtomicUsize::new(0));
        move |t: &[Tensor]| Ok(vec![t[0].matmul(&weights[calls.fetch_add(1, Ordering::Relaxed) % 2])?])
    };
    stateful(OparaExecutor::builder(), make(), &one_on(0, &device)?, &["keeps state"]);
    assert_same_state_as(make, |i| one_on(i, &device));
    Ok(())
}

#[test]
fn a_changing_number_of_outputs_is_detected() -> anyhow::Result<()> {
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
    assert_same_state_as(make, |i| one_on(i, &device));
    Ok(())
}

/// The outputs show neither the values nor the position of the writes.
#[test]
fn writes_to_changing_rows_of_a_fixed_cache_are_detected() -> anyhow::Result<()> {
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
