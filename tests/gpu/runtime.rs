//! The executor after it was built, on a GPU: evicted shapes, borrowed outputs, modules that change or free memory,
//! re-checks, threads. Tests skip without a GPU or the feature `cuda`, and say so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use crate::common::{assert_nine_shapes_settle, assert_same, devices, gpu, isolated, logged, stopped_at, waves};
use candle::{Device, Result, Tensor, Var};
use opara_candle::{Error, Mode, OparaExecutor};
use tracing::Level;

/// Message for taking a lock.
const FREE: &str = "no panic holds this lock";

fn rows(n: usize, device: &Device) -> Result<[Tensor; 1]> {
    Ok([waves(n, (n, 6))?.to_device(device)?])
}

fn plain(t: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![t[0].tanh()?.sqr()?])
}

/// A module that reads back, and so is not captured.
fn eager(t: &[Tensor]) -> Result<Vec<Tensor>> {
    t[0].flatten_all()?.get(0)?.to_scalar::<f32>()?;
    plain(t)
}

/// An executor of [`plain`], captured for two rows.
fn captured(device: &Device) -> anyhow::Result<OparaExecutor> {
    let fast = OparaExecutor::builder().build_fn(plain, &rows(2, device)?)?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    Ok(fast)
}

#[test]
fn nine_shapes_in_turn_are_not_rebuilt_forever() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    assert_nine_shapes_settle(plain, plain, |n| rows(n, &device))
}

#[test]
fn calling_with_the_shapes_of_borrowed_outputs_is_an_error() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let replayed = captured(&device)?;
    let unrecorded = OparaExecutor::builder().build_fn(eager, &rows(2, &device)?)?;
    assert_eq!(unrecorded.report().mode(), Mode::Eager);
    let x = rows(2, &device)?;
    for (fast, other) in [(&replayed, &unrecorded), (&unrecorded, &replayed)] {
        fast.call_zero_copy(&x, |borrowed| -> anyhow::Result<()> {
            assert!(matches!(fast.call(&x), Err(Error::OutputsBorrowed)));
            assert!(matches!(fast.call_zero_copy(&x, |_| ()), Err(Error::OutputsBorrowed)));
            assert!(matches!(fast.measure(&x), Err(Error::OutputsBorrowed)));
            assert_same(&fast.call(&rows(3, &device)?)?, &plain(&rows(3, &device)?)?, "other shapes");
            assert_same(&other.call(&x)?, &plain(&x)?, "another executor");
            assert_same(borrowed, &plain(&x)?, "borrowed");
            Ok(())
        })??;
        assert_same(&fast.call(&x)?, &plain(&x)?, "after the closure");
    }
    Ok(())
}

/// Each thread borrows one executor's outputs, and calls the other executor inside its closure.
#[test]
fn two_threads_may_borrow_outputs_of_each_others_executors() -> anyhow::Result<()> {
    for device in devices()? {
        let executors = [captured(&device)?, captured(&device)?];
        let both = Barrier::new(2);
        let cross = |own: usize| -> anyhow::Result<()> {
            let x = rows(2, &device)?;
            executors[own].call_zero_copy(&x, |borrowed| -> anyhow::Result<()> {
                both.wait();
                let called = executors[1 - own].call(&x);
                let other = executors[1 - own]
                    .call_zero_copy(&x, |borrowed| borrowed.iter().map(Tensor::copy).collect::<Result<Vec<_>>>());
                both.wait();
                assert_same(&called?, &plain(&x)?, "the other executor's answer");
                assert_same(&other??, &plain(&x)?, "the other executor's outputs");
                assert_same(borrowed, &plain(&x)?, "borrowed outputs");
                Ok(())
            })?
        };
        thread::scope(|scope| {
            let other = scope.spawn(|| cross(1));
            let own = cross(0);
            other.join().expect("no panic").and(own)
        })?;
        for fast in &executors {
            assert_same(&fast.call(&rows(2, &device)?)?, &plain(&rows(2, &device)?)?, "afterwards");
            assert_eq!(fast.report().mode(), Mode::Graph);
        }
    }
    Ok(())
}

#[test]
fn a_panicking_closure_does_not_affect_other_borrowers() -> anyhow::Result<()> {
    for device in devices()? {
        let fast = captured(&device)?;
        fast.call(&rows(3, &device)?)?;
        let both = Barrier::new(2);
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let x = rows(2, &device).expect("an input");
                fast.call_zero_copy(&x, |_| {
                    both.wait();
                    panic!("a closure's panic")
                })
            });
            let x = rows(3, &device)?;
            fast.call_zero_copy(&x, |borrowed| -> anyhow::Result<()> {
                both.wait();
                assert!(panics.join().is_err(), "the panic passes through");
                assert_same(borrowed, &plain(&x)?, "what the other thread has");
                assert_same(&fast.call(&rows(2, &device)?)?, &plain(&rows(2, &device)?)?, "the shapes of the panic");
                Ok(())
            })?
        })?;
        for n in [2, 3, 4] {
            let x = rows(n, &device)?;
            assert_same(&fast.call(&x)?, &plain(&x)?, format_args!("{n} rows"));
            let expected = plain(&x)?;
            fast.call_zero_copy(&x, |borrowed| assert_same(borrowed, &expected, format_args!("{n} rows, borrowed")))?;
        }
    }
    Ok(())
}

/// Needs captures that other threads do not wait for.
#[test]
fn a_built_shape_answers_while_another_is_being_built() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (function, stopped) = stopped_at(5, plain);
    let fast = OparaExecutor::builder().build_fn(function, &rows(2, &device)?)?;
    let new = rows(5, &device)?;
    thread::scope(|scope| -> anyhow::Result<()> {
        let building = scope.spawn(|| fast.call(&new));
        assert!(stopped.entered.recv().is_err(), "the module is being recorded");
        let x = rows(2, &device)?;
        let expected = plain(&x)?;
        assert_same(&fast.call(&x)?, &expected, "a call meanwhile");
        fast.call_zero_copy(&x, |borrowed| assert_same(borrowed, &expected, "borrowed meanwhile"))?;
        drop(stopped.leave);
        assert_same(&building.join().expect("no panic")?, &plain(&new)?, "the new shape");
        Ok(())
    })
}

/// A module that keeps one table, for the last shape, and frees the one before.
fn table_of_the_last_shape() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let table = Mutex::new(None::<(usize, Tensor)>);
    move |t: &[Tensor]| {
        let rows = t[0].dim(0)?;
        let table = {
            let mut table = table.lock().expect(FREE);
            if table.as_ref().is_none_or(|(of, _)| *of != rows) {
                *table = None;
                *table = Some((rows, Tensor::arange(0f32, 6. * rows as f32, t[0].device())?.reshape((rows, 6))?));
            }
            table.as_ref().expect("it was made above").1.clone()
        };
        Ok(vec![(&t[0] + table)?])
    }
}

fn with_table(t: &[Tensor]) -> Result<Vec<Tensor>> {
    let rows = t[0].dim(0)?;
    Ok(vec![(&t[0] + Tensor::arange(0f32, 6. * rows as f32, t[0].device())?.reshape((rows, 6))?)?])
}

#[test]
fn two_threads_share_a_module_that_keeps_one_table() -> anyhow::Result<()> {
    isolated(|| {
        // With per-thread streams, threads that share a table must synchronise themselves.
        for device in devices()?.into_iter().take(2) {
            let fast = OparaExecutor::builder().build_fn(table_of_the_last_shape(), &rows(4, &device)?)?;
            // Inputs and expected answers are computed before: concurrent uploads are tested elsewhere.
            let work = |n: usize| Ok::<_, candle::Error>((rows(n, &device)?, with_table(&rows(n, &device)?)?));
            let work = [work(4)?, work(5)?];
            device.synchronize()?;
            let both = Barrier::new(2);
            let call = |(x, _): &([Tensor; 1], Vec<Tensor>)| -> anyhow::Result<Vec<_>> {
                both.wait();
                let mut answers = Vec::new();
                for _ in 0..200 {
                    answers.push(fast.call(x)?);
                    // Reuses the memory of a freed table.
                    answers.push(fast.call_zero_copy(x, |borrowed| {
                        borrowed.iter().map(Tensor::copy).collect::<Result<Vec<_>>>()
                    })??);
                }
                device.synchronize()?;
                Ok(answers)
            };
            let answers = thread::scope(|scope| {
                let other = scope.spawn(|| call(&work[1]));
                let own = call(&work[0]);
                Ok::<_, anyhow::Error>([own?, other.join().expect("no panic")?])
            })?;
            for (answers, (_, expected)) in answers.iter().zip(&work) {
                for (i, answer) in answers.iter().enumerate() {
                    assert_same(answer, expected, format_args!("call {i}"));
                }
            }
            let report = fast.report();
            // Rebuilding for every call would cost more than it saves.
            assert!(report.rebuilds() <= 16, "{report}");
        }
        Ok(())
    })
}

/// On one thread: the table of the first shape is freed while its plan exists, and its memory is overwritten.
#[test]
fn a_table_freed_between_calls_rebuilds_the_plan_a_limited_number_of_times() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let (log, report) = logged(Level::WARN, || {
            let fast = OparaExecutor::builder().build_fn(table_of_the_last_shape(), &rows(4, &device)?)?;
            for round in 0..20 {
                for n in [4, 5] {
                    let noise = Tensor::full(f32::NAN, (n, 6), &device)?;
                    let x = rows(n, &device)?;
                    assert_same(&fast.call(&x)?, &with_table(&x)?, format_args!("{n} rows in round {round}"));
                    drop(noise);
                }
            }
            Ok(fast.report())
        })?;
        assert!(report.mode() == Mode::Eager && report.rebuilds() == 16, "{report}");
        assert_eq!(log.iter().filter(|line| line.contains("keeps freeing")).count(), 1, "{log:?}");
        Ok(())
    })
}

#[test]
fn swapped_weights_and_variables_are_used_after_invalidate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on_device = |i: usize| waves(i, 6)?.to_device(&device);
    let weight = Arc::new(Mutex::new(on_device(1)?));
    // The first weight is not freed, so only `invalidate` can reveal the change.
    let first = weight.lock().expect(FREE).clone();
    let variable = Var::from_tensor(&on_device(3)?)?;
    let function = {
        let (weight, variable) = (weight.clone(), variable.clone());
        move |t: &[Tensor]| {
            let weight = weight.lock().expect(FREE).clone();
            let folded = variable.as_tensor().detach().affine(2., 1.)?;
            Ok(vec![t[0].broadcast_mul(&weight)?.broadcast_add(&folded)?])
        }
    };
    let fast = OparaExecutor::builder().build_fn(function.clone(), &rows(2, &device)?)?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    fast.call(&rows(3, &device)?)?;
    *weight.lock().expect(FREE) = on_device(2)?;
    variable.set(&on_device(4)?)?;
    fast.invalidate();
    for n in [2, 3, 2] {
        let x = rows(n, &device)?;
        assert_same(&fast.call(&x)?, &function(&x)?, format_args!("{n} rows"));
        assert_eq!(fast.report_for(&x)?.mode(), Mode::Graph, "{}", fast.report_for(&x)?);
    }
    assert_same(&[first], &[on_device(1)?], "the first weight");
    Ok(())
}

/// Counts how often building calls a module, then builds one that changes its answer at the tenth call after that.
#[test]
fn a_recheck_detects_a_module_whose_outputs_change() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let x = rows(2, &device)?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = |changes: usize| {
        let calls = calls.clone();
        move |t: &[Tensor]| {
            let scale = if calls.fetch_add(1, Ordering::Relaxed) < changes { 1. } else { 2. };
            Ok(vec![t[0].affine(scale, 0.)?])
        }
    };
    OparaExecutor::builder().build_fn(counted(usize::MAX), &x)?;
    let changes = calls.swap(0, Ordering::Relaxed) + 9;
    for zero_copy in [false, true] {
        calls.store(0, Ordering::Relaxed);
        let (log, ()) = logged(Level::ERROR, || -> anyhow::Result<()> {
            let fast = OparaExecutor::builder().recheck(3).build_fn(counted(changes), &x)?;
            assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
            let answer = || match zero_copy {
                false => fast.call(&x),
                true => {
                    Ok(fast.call_zero_copy(&x, |outputs| outputs.iter().map(Tensor::copy).collect::<Result<_>>())??)
                }
            };
            let twice = [(&x[0] * 2.)?];
            for call in 1..30 {
                assert_same(&answer()?, &x, format_args!("call {call}"));
                assert_eq!((fast.report().rechecks(), fast.report().mismatches()), (call / 3, 0));
            }
            assert_same(&answer()?, &twice, "the call that finds it");
            let report = fast.report();
            assert!(report.mode() == Mode::Eager && (report.rechecks(), report.mismatches()) == (10, 1), "{report}");
            for call in 0..10 {
                assert_same(&answer()?, &twice, format_args!("call {call} after it"));
            }
            fast.invalidate();
            assert_same(&answer()?, &twice, "built anew");
            assert_eq!(fast.report().mode(), Mode::Graph);
            Ok(())
        })?;
        assert_eq!(log.len(), 1, "{log:?}");
    }
    Ok(())
}

/// With NaN, infinities and zeros of both signs, every output dtype, and inputs in any layout.
#[test]
fn rechecks_of_a_sound_module_find_nothing() -> anyhow::Result<()> {
    for device in devices()? {
        let function = |t: &[Tensor]| {
            let mut outputs = Vec::new();
            for dtype in crate::common::DTYPES {
                outputs.push(t[0].to_dtype(dtype)?);
            }
            outputs.push(t[0].narrow(0, 0, 0)?);
            Ok(outputs)
        };
        let special = [0f32, -0., f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.];
        let special = Tensor::new(&[special, [1.; 6]], &device)?;
        let fast = OparaExecutor::builder().recheck(1).build_fn(function, &rows(2, &device)?)?;
        for i in 0..4 {
            let wide = waves(i, (2, 8))?.to_device(&device)?.narrow(1, 1, 6)?;
            for x in [wide, special.narrow(0, 1, 1)?.broadcast_as((2, 6))?, special.clone()] {
                let floats = |t: &[Tensor]| vec![t[3].clone(), t[4].clone(), t[5].clone(), t[6].clone()];
                let x = [x];
                assert_same(&floats(&fast.call(&x)?), &floats(&function(&x)?), i);
                fast.call_zero_copy(&x, |borrowed| assert_eq!(borrowed.len(), 8))?;
            }
        }
        let report = fast.report();
        assert_eq!((report.mode(), report.rechecks(), report.mismatches()), (Mode::Graph, 24, 0), "{report}");
    }
    Ok(())
}
