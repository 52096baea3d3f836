//! The executor after it was built, on the CPU: evicted shapes, borrowed outputs, modules that change, re-checks,
//! threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use candle::{DType, Module, Result, Tensor, Var};
use opara_candle::{ops, Error, Mode, OparaExecutor};
use tracing::Level;

use super::common::{assert_nine_shapes_settle, assert_same, counted, logged, one, stopped_at, waves, CPU};

fn rows(n: usize) -> Result<[Tensor; 1]> {
    Ok([waves(n, (n, 6))?])
}

fn tanh(t: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![ops::tanh(&t[0])?])
}

/// A module that cannot be recorded.
fn eager(t: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![t[0].tanh()?])
}

#[test]
fn nine_shapes_in_turn_are_not_rebuilt_forever() -> anyhow::Result<()> {
    assert_nine_shapes_settle(tanh, eager, rows)
}

/// A module whose branch depends on the number of rows; one branch cannot be recorded.
fn by_rows(t: &[Tensor]) -> Result<Vec<Tensor>> {
    match t[0].dim(0)? {
        1 => tanh(t),
        2 => Ok(vec![ops::relu(&ops::tanh(&t[0])?)?]),
        _ => eager(t),
    }
}

#[test]
fn reports_and_traces_belong_to_the_given_input_shapes() -> anyhow::Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let fast = OparaExecutor::builder().build_fn(counted(&calls, by_rows), &rows(1)?)?;
    for n in [2, 3] {
        fast.call(&rows(n)?)?;
    }
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(
        (fast.report().mode(), fast.report().counts().ops),
        (Mode::Threads, 1),
        "of the example, not of the last call"
    );
    for (n, mode, ops) in [(1, Mode::Threads, 1), (2, Mode::Threads, 2), (3, Mode::Eager, 0)] {
        let x = rows(n)?;
        let report = fast.report_for(&x)?;
        assert_eq!((report.mode(), report.counts().ops), (mode, ops), "{n} rows: {report}");
        if mode == Mode::Eager {
            let reasons = [fast.trace(&x).map(drop), fast.schedule(&x).map(drop), fast.schedule_svg(&x).map(drop)];
            for error in reasons.map(|result| result.expect_err("nothing is recorded")) {
                let expected = report.reason().unwrap_or_default();
                assert!(matches!(&error, Error::NotRecorded { reason } if reason == expected), "{error}");
            }
            continue;
        }
        assert_eq!(fast.trace(&x)?.ops.len(), ops);
        let (trace, schedule) = fast.schedule(&x)?;
        assert_eq!((trace.ops.len(), schedule.order.len()), (ops, ops));
        assert!(fast.schedule_svg(&x)?.contains(&format!("{ops} ops on 1 streams")));
    }
    assert_eq!(calls.load(Ordering::Relaxed), before, "a look at what is built calls nothing");
    assert!(matches!(fast.report_for(&[]), Err(Error::InputCount { .. })));
    fast.invalidate();
    assert_eq!(fast.trace(&rows(2)?)?.ops.len(), 2, "it is built anew");
    assert!(calls.load(Ordering::Relaxed) > before);
    Ok(())
}

#[test]
fn calling_with_the_shapes_of_borrowed_outputs_is_an_error() -> anyhow::Result<()> {
    let replayed = OparaExecutor::builder().build_fn(tanh, &rows(2)?)?;
    let unrecorded = OparaExecutor::builder().build_fn(eager, &rows(2)?)?;
    assert_eq!((replayed.report().mode(), unrecorded.report().mode()), (Mode::Threads, Mode::Eager));
    for (fast, other) in [(&replayed, &unrecorded), (&unrecorded, &replayed)] {
        let x = rows(2)?;
        let expected = eager(&x)?;
        fast.call_zero_copy(&x, |borrowed| -> anyhow::Result<()> {
            assert!(matches!(fast.call(&x), Err(Error::OutputsBorrowed)));
            assert!(matches!(fast.call_zero_copy(&x, |_| ()), Err(Error::OutputsBorrowed)));
            assert!(matches!(fast.timeline(&x), Err(Error::OutputsBorrowed)));
            assert_same(&fast.call(&rows(3)?)?, &eager(&rows(3)?)?, "other shapes");
            assert_same(&other.call(&x)?, &expected, "another executor");
            other.call_zero_copy(&x, |inner| {
                assert!(matches!(fast.call(&x), Err(Error::OutputsBorrowed)), "two closures deep");
                assert_same(inner, &expected, "borrowed inside");
            })?;
            assert_same(borrowed, &expected, "borrowed");
            Ok(())
        })??;
        assert_same(&fast.call(&x)?, &expected, "after the closure");
    }
    Ok(())
}

#[test]
fn two_threads_may_borrow_outputs_of_each_others_executors() -> anyhow::Result<()> {
    let build = || OparaExecutor::builder().build_fn(tanh, &rows(2).map_err(Error::Candle)?);
    let executors = [build()?, build()?];
    let both = Barrier::new(2);
    let cross = |own: usize| -> anyhow::Result<()> {
        let x = rows(2)?;
        executors[own].call_zero_copy(&x, |borrowed| {
            both.wait();
            let other = executors[1 - own].call(&x)?;
            both.wait();
            assert_same(&other, &eager(&x)?, "the other executor's answer");
            assert_same(borrowed, &eager(&x)?, "borrowed outputs");
            Ok(())
        })?
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| cross(1));
        cross(0)?;
        other.join().expect("no panic")
    })
}

#[test]
fn a_panicking_closure_does_not_affect_other_borrowers() -> anyhow::Result<()> {
    let fast = OparaExecutor::builder().build_fn(tanh, &rows(2)?)?;
    fast.call(&rows(3)?)?;
    let both = Barrier::new(2);
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            fast.call_zero_copy(&rows(2)?, |_| {
                both.wait();
                panic!("a closure's panic")
            })
        });
        fast.call_zero_copy(&rows(3)?, |borrowed| -> anyhow::Result<()> {
            both.wait();
            assert!(panics.join().is_err(), "the panic passes through");
            assert_same(borrowed, &eager(&rows(3)?)?, "what the other thread has");
            assert_same(&fast.call(&rows(2)?)?, &eager(&rows(2)?)?, "the shapes of the panic");
            Ok(())
        })?
    })?;
    // Also on the thread that panics.
    let x = rows(2)?;
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        fast.call_zero_copy::<()>(&x, |_| panic!("a closure's panic"))
    }));
    assert!(panics.is_err());
    for n in [2, 3, 4] {
        assert_same(&fast.call(&rows(n)?)?, &eager(&rows(n)?)?, format_args!("{n} rows"));
        fast.call_zero_copy(&rows(n)?, |borrowed| {
            assert_same(borrowed, &eager(&[waves(n, (n, 6)).unwrap()]).unwrap(), "borrowed")
        })?;
    }
    Ok(())
}

#[test]
fn a_built_shape_answers_while_another_is_being_built() -> anyhow::Result<()> {
    let (function, stopped) = stopped_at(5, tanh);
    let fast = OparaExecutor::builder().build_fn(function, &rows(2)?)?;
    thread::scope(|scope| -> anyhow::Result<()> {
        let building = scope.spawn(|| fast.call(&rows(5)?));
        assert!(stopped.entered.recv().is_err(), "the module is being recorded");
        assert_same(&fast.call(&rows(2)?)?, &eager(&rows(2)?)?, "a call meanwhile");
        fast.call_zero_copy(&rows(2)?, |borrowed| {
            assert_same(borrowed, &eager(&[waves(2, (2, 6)).unwrap()]).unwrap(), "borrowed meanwhile")
        })?;
        assert_eq!(fast.report().mode(), Mode::Threads);
        drop(stopped.leave);
        assert_same(&building.join().expect("no panic")?, &eager(&rows(5)?)?, "the new shape");
        Ok(())
    })
}

#[test]
fn a_swapped_weight_is_used_after_invalidate() -> anyhow::Result<()> {
    let weight = Arc::new(Mutex::new(waves(1, 6)?));
    let shared = weight.clone();
    let function = move |t: &[Tensor]| {
        let weight = shared.lock().expect("no panic holds this lock").clone();
        Ok(vec![ops::mul(&t[0], &weight)?])
    };
    let fast = OparaExecutor::builder().build_fn(function, &rows(2)?)?;
    for n in [2, 3] {
        fast.call(&rows(n)?)?;
    }
    *weight.lock().expect("no panic holds this lock") = waves(2, 6)?;
    let report = fast.report();
    fast.call_zero_copy(&rows(2)?, |borrowed| -> anyhow::Result<()> {
        let before = borrowed[0].copy()?;
        fast.invalidate();
        assert_same(borrowed, &[before], "borrowed outputs meanwhile");
        assert!(matches!(fast.call(&rows(2)?), Err(Error::OutputsBorrowed)), "still borrowed");
        Ok(())
    })??;
    assert_eq!(fast.report(), report, "the report stays");
    for n in [2, 3, 2] {
        let x = rows(n)?;
        assert_same(&fast.call(&x)?, &[x[0].broadcast_mul(&waves(2, 6)?)?], format_args!("{n} rows"));
        assert_eq!(fast.report_for(&x)?.mode(), Mode::Threads, "{}", fast.report_for(&x)?);
    }
    Ok(())
}

#[test]
fn a_changed_variable_behind_a_folded_operator_is_used_after_invalidate() -> anyhow::Result<()> {
    let variable = Var::from_tensor(&waves(1, 6)?)?;
    let read = variable.clone();
    let function = move |t: &[Tensor]| Ok(vec![ops::add(&t[0], &ops::affine(&read, 2., 0.)?)?]);
    let fast = OparaExecutor::builder().build_fn(function.clone(), &rows(2)?)?;
    assert_eq!(fast.report().counts().folded, 1, "{}", fast.report());
    variable.set(&waves(2, 6)?)?;
    fast.invalidate();
    assert_same(&fast.call(&rows(2)?)?, &function(&rows(2)?)?, "the new value");
    let unfolded = OparaExecutor::builder().fold_constants(false).build_fn(function.clone(), &rows(2)?)?;
    variable.set(&waves(3, 6)?)?;
    assert_same(&unfolded.call(&rows(2)?)?, &function(&rows(2)?)?, "without invalidate");
    Ok(())
}

/// A module whose outputs change at the tenth call.
fn changes_at_the_tenth_call() -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    let calls = AtomicUsize::new(0);
    move |t| Ok(vec![ops::affine(&t[0], if calls.fetch_add(1, Ordering::Relaxed) < 9 { 1. } else { 2. }, 0.)?])
}

#[test]
fn a_recheck_detects_a_module_whose_outputs_change() -> anyhow::Result<()> {
    for zero_copy in [false, true] {
        let (log, ()) = logged(Level::ERROR, || -> anyhow::Result<()> {
            let x = rows(2)?;
            let fast = OparaExecutor::builder().recheck(3).build_fn(changes_at_the_tenth_call(), &x)?;
            assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
            let answer = || match zero_copy {
                false => fast.call(&x),
                true => fast
                    .call_zero_copy(&x, |outputs| outputs.iter().map(Tensor::copy).collect::<Result<_>>())?
                    .map_err(Error::Candle),
            };
            let twice = [(&x[0] * 2.)?];
            // At most nine rounds of three calls each.
            let found = (1..28).find_map(|call| match answer() {
                Ok(got) if fast.report().mismatches() == 0 => {
                    assert_eq!(fast.report().rechecks(), call / 3);
                    assert_same(&got, &x, format_args!("call {call}"));
                    None
                }
                got => Some(got),
            });
            assert_same(&found.expect("it is found")?, &twice, "the call that finds it");
            let report = fast.report();
            assert!(report.mode() == Mode::Eager && report.mismatches() == 1, "{report}");
            assert!(report.reason().as_ref().is_some_and(|reason| reason.contains("11 of 12")), "{report}");
            for call in 0..10 {
                assert_same(&answer()?, &twice, format_args!("call {call} after it"));
            }
            assert_eq!(fast.report().rechecks(), report.rechecks(), "an eager call is not compared");
            fast.invalidate();
            assert_same(&answer()?, &twice, "built anew");
            assert_eq!(fast.report().mode(), Mode::Threads);
            Ok(())
        })?;
        assert_eq!(log.len(), 1, "{log:?}");
    }
    Ok(())
}

#[test]
fn a_recheck_calls_the_module_once_per_interval() -> anyhow::Result<()> {
    for (every, expected) in [(0, 0), (1, 20), (5, 4)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let fast = OparaExecutor::builder().recheck(every).build_fn(counted(&calls, tanh), &rows(2)?)?;
        let before = calls.load(Ordering::Relaxed);
        // A slice of a wider matrix, which is not contiguous.
        let wide = waves(1, (2, 8))?.narrow(1, 1, 6)?;
        for i in 0..20 {
            let x = if i % 2 == 0 { rows(2)? } else { [wide.clone()] };
            assert_same(&fast.call(&x)?, &eager(&x)?, format_args!("call {i}"));
        }
        assert_eq!(calls.load(Ordering::Relaxed) - before, expected);
        let report = fast.report();
        assert_eq!((report.rechecks(), report.mismatches(), report.mode()), (expected as u64, 0, Mode::Threads));
        // Each shape counts its own calls.
        fast.call(&rows(3)?)?;
        assert_eq!(fast.report().rechecks(), expected as u64 + u64::from(every == 1));
    }
    Ok(())
}

#[test]
fn a_recheck_returns_the_modules_error() -> anyhow::Result<()> {
    let fails = Arc::new(AtomicUsize::new(0));
    let flag = fails.clone();
    let function = move |t: &[Tensor]| match flag.load(Ordering::Relaxed) {
        0 => Ok(vec![ops::tanh(&t[0])?]),
        _ => candle::bail!("not today"),
    };
    let fast = OparaExecutor::builder().recheck(2).build_fn(function, &one(0)?)?;
    fails.store(1, Ordering::Relaxed);
    fast.call(&one(1)?)?;
    let error = fast.call(&one(1)?).expect_err("the module fails");
    assert!(error.to_string().contains("not today"), "{error}");
    let error = fast
        .call_zero_copy(&one(1)?, |_| ())
        .map(|()| fast.call_zero_copy(&one(1)?, |_| ()))
        .expect("the third call is not compared");
    assert!(error.is_err());
    fails.store(0, Ordering::Relaxed);
    assert_same(&fast.call(&one(1)?)?, &[one(1)?[0].tanh()?], "and then goes on");
    Ok(())
}

#[test]
fn many_threads_call_borrow_recheck_and_invalidate() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| Ok(vec![ops::add(&ops::tanh(&t[0])?, &t[0])?]);
    let fast = OparaExecutor::builder().max_shapes(2).recheck(2).build_fn(function, &rows(1)?)?;
    let all = Barrier::new(4);
    let work = |thread: usize| -> anyhow::Result<()> {
        all.wait();
        for i in 0..40 {
            let n = 1 + (thread + i) % 4;
            let x = rows(n)?;
            let expected = [(x[0].tanh()? + &x[0])?];
            assert_same(&fast.call(&x)?, &expected, format_args!("call {i} of thread {thread}"));
            fast.call_zero_copy(&x, |borrowed| {
                assert_same(borrowed, &expected, format_args!("{i} of thread {thread}, borrowed"))
            })?;
            if (thread, i % 10) == (0, 9) {
                fast.invalidate();
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    assert_eq!(fast.report().mismatches(), 0);
    fast.forward(&Tensor::zeros((1, 6), DType::F32, CPU)?)?;
    Ok(())
}
